package engines

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pd-tools/pd-tools/rdma"
)

// Each engine must do the round that a receiver and a sender take.
func TestEngines(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			target, err := Open(Config{
				ReceiverID: t.Name(), Slots: 2, SlotSize: 100, Engines: []string{name},
				Fabric: rdma.Fabric{Provider: "tcp;ofi_rxm", Addr: "127.0.0.1"},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer target.Close()
			token, err := target.Grant(1, name)
			if err != nil {
				t.Fatal(err)
			}
			staging := []byte("chunk")
			remote, err := Attach(context.Background(), name, rdma.Attachment{
				ReceiverID: t.Name(), Token: token, Regions: target.Regions(name), SlotSize: 100, Slots: 2,
				Staging: staging, Host: "127.0.0.1", Fabric: rdma.Fabric{Provider: "tcp;ofi_rxm"},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer remote.Close()
			access, err := target.Open(1, 1)
			if err != nil {
				t.Fatal(err)
			}
			if err := remote.Write(context.Background(), []rdma.Op{{Local: staging, Slot: 1, Access: access}}); err != nil {
				t.Fatal(err)
			}
			if got := string(target.Slot(1)[:5]); got != "chunk" {
				t.Errorf("the slot has %q", got)
			}
		})
	}
}

func TestUnknownEngine(t *testing.T) {
	_, err := Open(Config{Slots: 1, SlotSize: 1, Engines: []string{"ucx"}})
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

// Whoever finds no receiver on this host can go on to the next engine.
func TestUnreachable(t *testing.T) {
	_, err := Attach(context.Background(), "shm", rdma.Attachment{
		ReceiverID: "nobody", Token: make([]byte, 41), SlotSize: 1, Slots: 1,
	})
	if !errors.Is(err, rdma.ErrUnreachable) {
		t.Errorf("error %v, want ErrUnreachable", err)
	}
}
