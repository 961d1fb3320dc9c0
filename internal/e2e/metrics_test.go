package e2e

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/pd-tools/pd-tools/internal/testkit"
)

// metricsOf is where a program serves them, as it says on stderr.
func metricsOf(p *program) string {
	p.t.Helper()
	p.says("metrics on http://")
	return regexp.MustCompile(`metrics on (http://\S+)/metrics`).FindStringSubmatch(p.stderr())[1]
}

// scrape reads a program's metrics as Prometheus does.
func scrape(t *testing.T, base string) map[string]*dto.MetricFamily {
	t.Helper()
	code, body, err := testkit.Fetch(base + "/metrics")
	if err != nil || code != 200 {
		t.Fatalf("%d %s %v", code, body, err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// value is a counter's or a gauge's without labels.
func value(families map[string]*dto.MetricFamily, name string) float64 {
	f := families[name]
	if f == nil {
		return -1
	}
	return f.Metric[0].GetCounter().GetValue() + f.Metric[0].GetGauge().GetValue()
}

// scrapeUntil scrapes until a counter is what it must become: a Snapshot may be
// a little old.
func scrapeUntil(t *testing.T, base, name string, want float64) map[string]*dto.MetricFamily {
	t.Helper()
	for began := time.Now(); ; {
		families := scrape(t, base)
		if value(families, name) == want {
			return families
		}
		if time.Since(began) > patience {
			t.Fatalf("%s is %v after %v, want %v", name, value(families, name), patience, want)
		}
	}
}

// grown reports each counter and bucket that is less than before.
func grown(t *testing.T, before, now map[string]*dto.MetricFamily) {
	t.Helper()
	numbers := func(families map[string]*dto.MetricFamily) map[string]float64 {
		out := map[string]float64{}
		for name, f := range families {
			for _, m := range f.Metric {
				key := fmt.Sprint(name, m.Label)
				if f.GetType() == dto.MetricType_COUNTER {
					out[key] = m.Counter.GetValue()
				}
				for _, b := range m.GetHistogram().GetBucket() {
					out[fmt.Sprint(key, b.GetUpperBound())] = float64(b.GetCumulativeCount())
				}
			}
		}
		return out
	}
	later := numbers(now)
	for key, n := range numbers(before) {
		if later[key] < n {
			t.Errorf("%s fell from %v to %v", key, n, later[key])
		}
	}
}

// TestMetrics scrapes the three programs while requests go through them, many
// more times than Prometheus would, and compares the end with what was sent.
func TestMetrics(t *testing.T) {
	t.Parallel()
	const requests = 40
	r := receive(t, 10, "--sink", "--metrics", "127.0.0.1:*")
	proxy := start(t, nil, "pd-proxy", "--listen", "tcp://127.0.0.1:*", "--metrics", "127.0.0.1:0")
	sender := feed(t, "pd-send", "--to", r.endpoint, "--proxy", listening(proxy), "--metrics", "[::1]:0")
	programs := []string{metricsOf(r.program), metricsOf(proxy), metricsOf(sender.program)}

	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, base := range programs {
		wg.Go(func() {
			before := map[string]*dto.MetricFamily{}
			for scraped := 0; ; scraped++ {
				select {
				case <-stop:
					if scraped < 3 {
						t.Errorf("%d scrapes of %s", scraped, base)
					}
					return
				default:
				}
				code, body, err := testkit.Fetch(base + "/metrics")
				parser := expfmt.NewTextParser(model.LegacyValidation)
				now, parseErr := parser.TextToMetricFamilies(strings.NewReader(body))
				if err != nil || code != 200 || parseErr != nil {
					t.Errorf("%s: %d %v %v", base, code, err, parseErr)
					return
				}
				grown(t, before, now)
				before = now
			}
		})
	}
	for i := range requests {
		fmt.Fprintf(sender.stdin, `{"req_id":"m%d","total_chunks":2,"chunks":[{"key":"m%[1]d-0","length":100},{"key":"m%[1]d-1","length":28}],"last":true}`+"\n", i)
	}
	sender.until("all requests have ended", func() bool { return len(sender.out) == requests })
	proxy.until("the proxy is told", func() bool { return len(proxy.out) == requests })
	r.settles("all are released", func(s snapshot) bool { return s.Counters["released"] == requests })
	close(stop)
	wg.Wait()

	for i, prefix := range []string{"pd_recv_", "pd_proxy_", "pd_send_"} {
		families := scrapeUntil(t, programs[i], prefix+"requests_ready_total", requests)
		for name, want := range map[string]float64{
			"pd_recv_requests_admitted_total": requests, "pd_recv_written_chunks_total": 2 * requests, "pd_recv_written_bytes_total": 128 * requests,
			"pd_recv_requests_released_total": requests, "pd_recv_requests": 0, "pd_recv_queue_requests": 0, "pd_recv_stalled_requests": 0, "pd_recv_senders": 1, "pd_recv_build_info": 1,
			"pd_send_requests_ready_total": requests, "pd_send_requests": 0, "pd_send_sent_bytes_total": 128 * requests, "pd_send_receiver_attached": 1,
			"pd_send_staging_used_slots": 0, "pd_proxy_requests_ready_total": requests, "pd_proxy_requests_failed_total": 0, "pd_proxy_pending_requests": 0,
		} {
			if got := value(families, name); strings.HasPrefix(name, prefix) && got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		for _, name := range []string{"admission_wait_seconds", "write_seconds", "ready_seconds"} {
			if prefix == "pd_proxy_" {
				continue
			}
			h := families[prefix+name].Metric[0].Histogram
			if h.GetSampleCount() != requests || h.GetSampleSum() < 0 || h.GetSampleSum() > 600 {
				t.Errorf("%s%s has %d of sum %v s", prefix, name, h.GetSampleCount(), h.GetSampleSum())
			}
		}
	}
	for _, base := range programs {
		if code, body, err := testkit.Fetch(base + "/healthz"); err != nil || code != 200 {
			t.Errorf("%d %s %v", code, body, err)
		}
	}
	sender.stdin.Close()
	if code := sender.exits(); code != 0 {
		t.Errorf("pd-send: exit %d: %s", code, sender.stderr())
	}
	for _, p := range []*program{r.program, proxy} {
		p.kill(syscall.SIGTERM)
		if code := p.exits(); code != 0 {
			t.Errorf("exit %d: %s", code, p.stderr())
		}
	}
}

// A port for metrics that is taken ends each program at once, naming it.
func TestMetricsPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, args := range map[string][]string{
		"pd-recv": {"--listen", "tcp://127.0.0.1:*"}, "pd-proxy": {"--listen", "tcp://127.0.0.1:*"}, "pd-send": {"--to", "tcp://127.0.0.1:9"},
	} {
		checkPortTaken(t, l.Addr().String(), name, append(args, "--metrics", l.Addr().String())...)
	}
}

func TestMetricsForAllHosts(t *testing.T) {
	t.Parallel()
	p := start(t, nil, "pd-proxy", "--listen", "tcp://127.0.0.1:*", "--metrics", ":*")
	p.says("warning: other hosts can reach http://[::]:")
	if code, _, err := testkit.Fetch(strings.Replace(metricsOf(p), "[::]", "127.0.0.1", 1) + "/healthz"); code != 200 {
		t.Errorf("%d %v", code, err)
	}
	p.kill(syscall.SIGTERM)
	if code := p.exits(); code != 0 {
		t.Errorf("exit %d", code)
	}
}
