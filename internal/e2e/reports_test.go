package e2e

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// report is one failure that was reported from practice, by its number in the
// design's list, and the tests that show that it does not happen here: folder and
// function, and behind a colon the script where a function runs many. Where lasts
// or literally is called, less time or memory than was reported is taken, by what
// is said there; make test-reports takes all of it.
type report struct {
	no    int
	what  string
	tests []string
}

// reports has every number of that list; the gaps in it are the list's own.
var reports = []report{
	{1, "two requests fill the buffer piecemeal and neither ends", []string{"internal/e2e.TestTwoAtTheSameMoment"}},
	{4, "the slots of a sender that was killed never come back", []string{"internal/e2e.TestSenderDies"}},
	{6, "an aborted request holds its decoder for minutes", []string{"internal/e2e.TestFailureReachesTheProxy", "internal/proxy.TestTally"}},
	{8, "one stray frame ends the listener", []string{"internal/e2e.TestStrayFrames", "internal/receiver.TestFrameShapes", "internal/proxy.TestBadFrames", "cmd/pd-proxy.TestScripts:bad"}},
	{10, "a transfer that did finish is timed out", []string{"internal/e2e.TestReceiverStandsStill"}},
	{13, "a request larger than the buffer waits", []string{"internal/e2e.TestLargerThanTheBuffer"}},
	{14, "who is alive and queued loses what it has", []string{"internal/e2e.TestSlowSenderKeepsItsLease"}},
	{17, "a write to foreign memory", []string{"internal/e2e.TestCommitsOfForeignMemory", "internal/e2e.TestHostileWriter", "rdma/ofi.TestForeignWrites", "rdma/shm.TestWriteOutOfBounds"}},
	{18, "the first reader of a common prefix takes it away", []string{"internal/e2e.TestCommonPrefix"}},
	{24, "an abort names finished batches only", []string{"internal/e2e.TestCancelNamesTooFew", "internal/reservation.TestScenarios:rollback"}},
	{25, "a cancel that races with the end frees twice", []string{"internal/e2e.TestCancelRaces"}},
	{27, "fewer or repeated chunks", []string{"internal/e2e.TestFewerAndRepeatedChunks"}},
	{28, "more chunks than declared", []string{"internal/e2e.TestMoreChunksThanDeclared"}},
	{30, "all chunks are there already", []string{"internal/e2e.TestAllChunksAreThere"}},
	{32, "nobody asks for what was delivered", []string{"internal/e2e.TestNobodyAsksForIt"}},
	{33, "what is unread blocks everybody or goes in silence", []string{"internal/e2e.TestReadyAndUnread"}},
	{35, "notifications before anybody waits, and of nobody's", []string{"internal/e2e.TestProxyIsFlooded", "internal/proxy.TestTallyIsBounded"}},
	{36, "a large request starves, or blocks the small ones", []string{"internal/e2e.TestSmallOnesComeAllTheTime", "internal/e2e.TestLMCacheFailures", "internal/e2e.TestTopShowsWhoWaitsForAdmission"}},
	{38, "answers to peers that are gone", []string{"internal/e2e.TestGoneBeforeTheAnswer", "internal/receiver.TestUndeliverable"}},
	{39, "crashes under bursts of cancels", []string{"internal/e2e.TestCancelStorm"}},
	{40, "interrupted system calls", []string{"internal/e2e.TestSignalsThatMeanNothing", "cmd/pd-top.TestSignalStorm"}},
	{41, "descriptors run out", []string{"internal/e2e.TestMoreSendersThanDescriptors", "internal/e2e.TestFewDescriptors", "internal/e2e.TestManyTransfers", "cmd/pd-recv.TestScripts:files"}},
	{42, "a process waits for undelivered messages and does not end", []string{"internal/e2e.TestNoticesThatNobodyTakes", "cmd/pd-send.TestSignalsWhileNobodyAnswers", "cmd/pd-send.TestSecondSignalEndsAtOnce", "internal/e2e.TestSecondSignal"}},
	{44, "a rolling restart fails what is nearly done", []string{"internal/e2e.TestReceiverDrains", "internal/e2e.TestReceiverDrainsInTime", "internal/e2e.TestReceiverIsTerminated", "internal/e2e.TestSenderDrains"}},
	{45, "a receiver that stalls makes others wait", []string{"internal/e2e.TestReceiverStalls", "cmd/pd-send.TestReceiverIsStopped"}},
	{46, "an unreachable peer blocks every call", []string{"internal/e2e.TestUnreachableReceivers", "cmd/pd-send.TestReceiverThatIsNotThere", "internal/e2e.TestSendersComeFirst", "cmd/pd-send.TestReceiverIsKilledAndComesBack"}},
	{47, "who starts first, and the second sender", []string{"internal/e2e.TestSendersComeFirst"}},
	{48, "a mismatch is found at the first request", []string{"internal/e2e.TestMisfitIsNamedAtAttach", "internal/e2e.TestMisfits", "internal/sender.TestReceiverThatDoesNotFit"}},
	{50, "other forms of the same number or text", []string{"internal/e2e.TestFormsOfNumbers", "wire.TestTolerance"}},
	{52, "absurd numbers", []string{"internal/e2e.TestAbsurdNumbers"}},
	{54, "monitors that stop slow the work", []string{"internal/e2e.TestMonitorsThatStop", "internal/sender.TestRateBesideMonitors"}},
	{55, "a buffer that is no multiple of the chunk", []string{"internal/e2e.TestRemainderOfTheBuffer", "cmd/pd-recv.TestScripts:usage"}},
	{56, "too small a buffer is noticed under load", []string{"internal/e2e.TestBufferForTheLongestPrompt"}},
	{57, "the log is flooded while everybody waits", []string{"internal/e2e.TestSaturatedAndQuiet"}},
	{58, "overload shows as latency only", []string{"internal/e2e.TestQueueIsFull"}},
	{59, "the default wait is unbounded", []string{"internal/e2e.TestWaitEnds", "internal/e2e.TestWaitIsSaid", "internal/e2e.TestBadFlags", "internal/receiver.TestAdmissionTimeout"}},
	{60, "IPv6, names and ports", []string{"internal/e2e.TestAddresses", "cmd/pd-recv.TestScripts:usage"}},
	{61, "a taken port", []string{"internal/e2e.TestPortIsTaken"}},
	{62, "open to all interfaces", []string{"internal/e2e.TestListensOnThisHostOnly", "cmd/pd-recv.TestScripts:public"}},
	{63, "a proxy is mandatory", []string{"internal/e2e.TestListensOnThisHostOnly", "internal/e2e.TestProxyIsNotThere"}},
	{64, "the terminal is left raw", []string{"cmd/pd-top.TestTerminalIsRestored"}},
	{66, "windows of odd sizes", []string{"cmd/pd-top.TestSizes", "internal/top.TestAnything"}},
	{67, "ids with wide and control characters", []string{"internal/e2e.TestTopAgreesWithStat", "internal/top.TestClean", "cmd/pd-top.TestJSON"}},
	{68, "old numbers of a receiver that is gone", []string{"internal/e2e.TestTopOutlivesAReceiver"}},
	{70, "counts scaled as bytes, rates by the wrong clock", []string{"internal/top.TestNumbers", "internal/top.TestRateBySourceClock"}},
	{71, "no batch mode, or noise when the reader leaves", []string{"cmd/pd-top.TestStdoutEnds", "cmd/pd-top.TestJSON", "cmd/pd-top.TestNoTerminal"}},
	{72, "a late monitor misses what was before", []string{"internal/e2e.TestTopComesLate"}},
	{73, "suspended, and idle", []string{"internal/e2e.TestTopIsSuspended", "cmd/pd-top.TestIdle"}},
	{74, "what stdin can be", []string{"internal/e2e.TestStdin", "internal/e2e.TestLastChunkIsShort", "cmd/pd-send.TestInputThatIsNoManifest"}},
}

// reported are the numbers of the list.
var reported = []int{
	1, 4, 6, 8, 10, 13, 14, 17, 18, 24, 25, 27, 28, 30, 32, 33, 35, 36, 38, 39, 40, 41, 42, 44, 45, 46, 47, 48,
	50, 52, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 66, 67, 68, 70, 71, 72, 73, 74,
}

// TestEveryReportHasItsTest: no number is missing, each test is there, and none of
// them may skip by itself.
func TestEveryReportHasItsTest(t *testing.T) {
	t.Parallel()
	tests := testsOf(t)
	var numbers []int
	for _, r := range reports {
		numbers = append(numbers, r.no)
		if r.what == "" || len(r.tests) == 0 {
			t.Errorf("F%d has no test", r.no)
		}
		for _, name := range r.tests {
			name, script, scripted := strings.Cut(name, ":")
			body, ok := tests[name]
			if !ok {
				t.Errorf("F%d: there is no test %s", r.no, name)
				continue
			}
			if file := filepath.Join(root(), strings.Split(name, ".Test")[0], "testdata", script+".txt"); scripted && !exists(file) {
				t.Errorf("F%d: %s has no script %s", r.no, name, script)
			}
			if call := skips(body); call != "" && !scripted {
				t.Errorf("F%d: %s calls %s", r.no, name, call)
			}
		}
	}
	if !slices.Equal(numbers, reported) {
		t.Errorf("the table has %v, reported are %v", numbers, reported)
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// testsOf parses the tests of the repository: by folder and name.
func testsOf(t *testing.T) map[string]*ast.BlockStmt {
	t.Helper()
	tests := map[string]*ast.BlockStmt{}
	files := token.NewFileSet()
	err := filepath.WalkDir(root(), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root() || d.Name() == "testdata"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root(), filepath.Dir(path))
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && isTest(fn) {
				tests[folder+"."+fn.Name.Name] = fn.Body
			}
		}
		return err
	})
	if err != nil || len(tests) < 100 {
		t.Fatalf("%d tests are found: %v", len(tests), err)
	}
	return tests
}

// isTest says whether go test would run it: func TestX(t *testing.T).
func isTest(fn *ast.FuncDecl) bool {
	if !strings.HasPrefix(fn.Name.Name, "Test") || fn.Type.Params.NumFields() != 1 || fn.Type.Results.NumFields() != 0 {
		return false
	}
	star, ok := fn.Type.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	typ, ok := star.X.(*ast.SelectorExpr)
	return ok && typ.Sel.Name == "T"
}

// skips is the call by which a function leaves its test out, if there is one.
func skips(body *ast.BlockStmt) (call string) {
	ast.Inspect(body, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow", "Short"}, sel.Sel.Name) {
			call = fmt.Sprintf("%v.%s", sel.X, sel.Sel.Name)
		}
		return true
	})
	return call
}
