package sender

import (
	"testing"

	"go.uber.org/goleak"
)

// A Run leaves nothing behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
