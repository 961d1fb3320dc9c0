package metrics

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// unused are the metrics that neither the dashboard nor an alert needs, with
// the reason.
var unused = map[string]string{
	"pd_recv_build_info":              "for people; the dashboard lists instances by it",
	"pd_send_build_info":              "as of pd-recv",
	"pd_proxy_build_info":             "as of pd-recv",
	"pd_recv_ready_ttl_seconds":       "for rules of one's own: how far a ready request is from its end",
	"pd_send_staging_slot_size_bytes": "for rules of one's own: the staging buffer in bytes",
	"pd_send_refused_peers_total":     "lets in only who watches it; for rules of one's own",
	"pd_proxy_expected_notifications": "for people who look at pending requests",
}

// foreign are Prometheus's own, with their labels.
var foreign = map[string][]string{"up": nil}

// targetLabels are those that Prometheus adds to each series.
var targetLabels = []string{"job", "instance"}

// names are the metrics that may stand in an expression, with their labels.
func names(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for name, labels := range foreign {
		all[name] = append(slices.Clone(targetLabels), labels...)
	}
	for name, f := range served(t) {
		labels := slices.Clone(targetLabels)
		for _, l := range f.Metric[0].Label {
			labels = append(labels, l.GetName())
		}
		if f.GetType() != dto.MetricType_HISTOGRAM {
			all[name] = labels
			continue
		}
		all[name+"_sum"], all[name+"_count"] = labels, labels
		all[name+"_bucket"] = append(slices.Clone(labels), "le")
	}
	return all
}

// query is an expression and where its result is shown.
type query struct {
	where, expr string
	labels      []string // that a text beside it names
}

// check reports what in q no program serves, and marks what it uses.
func (q query) check(t *testing.T, served map[string][]string, used map[string]bool) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(q.expr)
	if err != nil {
		t.Errorf("%s: %v in %s", q.where, err, q.expr)
		return
	}
	var labels []string // of all that is selected
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		used[s.Name] = true
		have, ok := served[s.Name]
		if !ok {
			t.Errorf("%s: nobody serves %q", q.where, s.Name)
		}
		labels = append(labels, have...)
		for _, m := range s.LabelMatchers {
			if m.Name != "__name__" && !slices.Contains(have, m.Name) {
				t.Errorf("%s: %s has no label %q", q.where, s.Name, m.Name)
			}
		}
		return nil
	})
	wants := slices.Clone(q.labels)
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.AggregateExpr:
			wants = append(wants, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				wants = append(wants, n.VectorMatching.MatchingLabels...)
			}
		case *parser.Call:
			checkCall(t, q, n)
		}
		return nil
	})
	for _, l := range wants {
		if !slices.Contains(labels, l) {
			t.Errorf("%s: nothing in %s has a label %q", q.where, q.expr, l)
		}
	}
	if sum := aggregate(expr); sum != nil && !sum.Without {
		for _, l := range q.labels {
			if !slices.Contains(sum.Grouping, l) {
				t.Errorf("%s: label %q is summed away in %s", q.where, l, q.expr)
			}
		}
	}
}

// aggregate is what makes the labels of e's result, if it is an aggregation: of
// an operation that has them from its left side.
func aggregate(e parser.Expr) *parser.AggregateExpr {
	switch e := e.(type) {
	case *parser.AggregateExpr:
		return e
	case *parser.BinaryExpr:
		return aggregate(e.LHS)
	case *parser.ParenExpr:
		return aggregate(e.Expr)
	}
	return nil
}

// checkCall checks that what only counters have is asked of counters only, and
// quantiles of buckets.
func checkCall(t *testing.T, q query, call *parser.Call) {
	t.Helper()
	if !slices.Contains([]string{"rate", "increase"}, call.Func.Name) {
		return
	}
	counter := regexp.MustCompile(`_(total|bucket|sum|count)$`)
	parser.Inspect(call.Args[0], func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok && !counter.MatchString(s.Name) {
			t.Errorf("%s: %s of %s, which is no counter", q.where, call.Func.Name, s.Name)
		}
		return nil
	})
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("../../scripts/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// dashboardQueries are the expressions of the Grafana dashboard, with what
// Grafana fills in.
func dashboardQueries(t *testing.T) []query {
	t.Helper()
	type target struct {
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat"`
		Datasource   struct {
			UID string `json:"uid"`
		} `json:"datasource"`
	}
	var doc struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []target
		}
		Templating struct{ List []struct{ Name string } }
	}
	if err := json.Unmarshal(read(t, "grafana/pd-tools.json"), &doc); err != nil {
		t.Fatal(err)
	}
	var vars []string
	for _, v := range doc.Templating.List {
		vars = append(vars, v.Name)
	}
	if !slices.Equal(vars, []string{"datasource", "instance"}) {
		t.Errorf("the dashboard's variables are %q", vars)
	}
	var all []query
	ids := map[int]bool{}
	taken := map[[2]int]string{}
	for _, p := range doc.Panels {
		if ids[p.ID] {
			t.Errorf("panel %d is there twice", p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies on %q or outside", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, q := range p.Targets {
			if q.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q reads %q", p.Title, q.Datasource.UID)
			}
			if !strings.Contains(q.Expr, `instance=~"$instance"`) {
				t.Errorf("panel %q does not obey the instance: %s", p.Title, q.Expr)
			}
			var labels []string
			for _, m := range regexp.MustCompile(`{{\s*(\w+)\s*}}`).FindAllStringSubmatch(q.LegendFormat, -1) {
				labels = append(labels, m[1])
			}
			expr := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*").Replace(q.Expr)
			all = append(all, query{"dashboard, " + p.Title, expr, labels})
		}
	}
	return all
}

type alert struct {
	Alert       string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

func alerts(t *testing.T) []alert {
	t.Helper()
	var doc struct {
		Groups []struct {
			Name  string
			Rules []alert
		}
	}
	d := yaml.NewDecoder(bytes.NewReader(read(t, "alerts/pd-tools.yml")))
	d.KnownFields(true)
	if err := d.Decode(&doc); err != nil {
		t.Fatal(err)
	}
	var all []alert
	for _, g := range doc.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// query checks the rest of an alert and returns its expression.
func (a alert) query(t *testing.T) query {
	t.Helper()
	if _, err := model.ParseDuration(a.For); a.For != "" && err != nil {
		t.Errorf("%s: %v", a.Alert, err)
	}
	if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
		t.Errorf("%s has severity %q", a.Alert, a.Labels["severity"])
	}
	if a.Annotations["summary"] == "" || a.Annotations["description"] == "" || len(a.Annotations) != 2 {
		t.Errorf("%s needs a summary and a description of what to do", a.Alert)
	}
	q := query{where: "alert " + a.Alert, expr: a.Expr}
	format := func(any) string { return "" }
	for _, text := range a.Annotations {
		tmpl, err := template.New("").Funcs(template.FuncMap{"humanize": format, "humanizeDuration": format, "humanizePercentage": format}).
			Parse("{{ $labels := .Labels }}{{ $value := .Value }}" + text)
		if err != nil {
			t.Errorf("%s: %v", a.Alert, err)
			continue
		}
		if err := tmpl.Execute(&bytes.Buffer{}, map[string]any{"Labels": map[string]string{}, "Value": 1.5}); err != nil {
			t.Errorf("%s: %v", a.Alert, err)
		}
		for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(text, -1) {
			q.labels = append(q.labels, m[1])
		}
	}
	return q
}

// TestDashboardAndAlerts reads each expression as Prometheus does and compares
// its names and labels with what the programs serve; and what they serve, with
// what is used.
func TestDashboardAndAlerts(t *testing.T) {
	served, used := names(t), map[string]bool{}
	queries := dashboardQueries(t)
	seen := map[string]bool{}
	for _, a := range alerts(t) {
		if seen[a.Alert] {
			t.Errorf("alert %s is there twice", a.Alert)
		}
		seen[a.Alert] = true
		queries = append(queries, a.query(t))
	}
	if len(queries) < 60 {
		t.Errorf("%d expressions: were all found?", len(queries))
	}
	for _, q := range queries {
		q.check(t, served, used)
	}
	part := regexp.MustCompile(`_(bucket|sum|count)$`)
	for name := range served {
		_, excused := unused[name]
		ours := strings.HasPrefix(name, "pd_")
		if part.MatchString(name) {
			ours, name = ours && strings.HasSuffix(name, "_bucket"), part.ReplaceAllString(name, "")+"_bucket"
		}
		if ours && !used[name] && !excused {
			t.Errorf("%s is served and used nowhere", name)
		}
		if excused && used[name] {
			t.Errorf("%s is used: take it from the list", name)
		}
	}
	for name := range unused {
		if _, ok := served[name]; !ok {
			t.Errorf("%s is listed as not used and not served", name)
		}
	}
}
