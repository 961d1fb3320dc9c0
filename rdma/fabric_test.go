package rdma

import "testing"

func TestLocks(t *testing.T) {
	for provider, want := range map[string]bool{
		"tcp;ofi_rxm": false, "tcp": false, "sockets": false, "udp;ofi_rxd": false, "shm": false,
		"verbs;ofi_rxm": true, "verbs": true, "efa": true, "psm3": true,
	} {
		if got := (Fabric{Provider: provider}).Locks(); got != want {
			t.Errorf("%s: %v, want %v", provider, got, want)
		}
	}
}
