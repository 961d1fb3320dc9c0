package wire

// Limits of what Decode accepts, checked before memory is spent.
const (
	MaxMessage   = 1 << 20  // bytes of a message, AttachResponse, TakeResponse, Snapshot and Event excepted
	MaxResponse  = 64 << 20 // bytes of an AttachResponse, a TakeResponse, a Snapshot or an Event
	MaxKeys      = 8192     // keys of a batch, or of any other list that goes with a batch
	MaxKey       = 4096     // bytes of a key
	MaxReqID     = 512      // bytes of a req_id
	MaxReadyList = 1000     // entries of a ReadyResponse
	MaxShape     = 64       // dimensions of a shape
	MaxName      = 256      // bytes of a sender's name, an engine's name or a dtype
	MaxEngines   = 16       // engines an AttachRequest offers
	MaxAccess    = 64       // bytes of what an engine needs to write one slot
)

// maxDepth is how deep arrays and maps may lie in one another. It is where
// msgspec gives up under CPython's usual recursion limit.
const maxDepth = 998
