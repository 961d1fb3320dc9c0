package engines

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/pd-tools/pd-tools/rdma"
)

// Each engine must do the round that a receiver and a sender take.
func TestEngines(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			target, err := Target(name, t.Name(), 2, 100)
			if err != nil {
				t.Fatal(err)
			}
			defer target.Close()
			if target.Engines()[0] != name {
				t.Errorf("the engine calls itself %q", target.Engines())
			}
			token, err := target.Grant(1, name)
			if err != nil {
				t.Fatal(err)
			}
			remote, err := Attach(context.Background(), name, rdma.Attachment{
				ReceiverID: t.Name(), Token: token, Regions: target.Regions(name), SlotSize: 100, Slots: 2,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer remote.Close()
			if err := remote.Write(context.Background(), []rdma.Op{{Local: []byte("chunk"), Slot: 1}}); err != nil {
				t.Fatal(err)
			}
			if got := string(target.Slot(1)[:5]); got != "chunk" {
				t.Errorf("the slot has %q", got)
			}
		})
	}
}

func TestUnknownEngine(t *testing.T) {
	_, err := Target("ucx", "id", 1, 1)
	_, err2 := Attach(context.Background(), "ucx", rdma.Attachment{})
	for _, err := range []error{err, err2} {
		if err == nil || !strings.Contains(err.Error(), `engine "ucx" is not known: take one of shm`) {
			t.Errorf("error %v", err)
		}
	}
	if !slices.Contains(Names(), "shm") {
		t.Errorf("engines are %v", Names())
	}
}
