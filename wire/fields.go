package wire

// Message is a pointer to one of the message structs of this package.
type Message interface {
	// name is what stands in the "type" field.
	name() string
}

// layout is a Message, or a part of one, that lies on the wire as a map of
// fields: all but the reports.
type layout interface {
	// fields appends the fields to fs in the order in which they are written.
	// It is the one place that says how they lie on the wire; encoding and
	// decoding both follow it.
	fields(fs []field) []field
}

// field ties a name on the wire to a place in a message.
type field struct {
	name string
	rule rule
	max  int // bytes of a str, elements of a list; 0: as many as the frame has
	to   any // pointer of a type that both value methods know
}

// Lists whose elements have a rule of their own.
type (
	keyList    []string // each at most MaxKey bytes
	nameList   []string // each at most MaxName bytes
	regionList []int64  // empty when all are 0
	accessList [][]byte // each at most MaxAccess bytes; empty when all are
)

// room is memory for the fields of a message, and of a struct within it.
type room struct{ outer, inner [maxFields]field }

const maxFields = 16 // of any message

// rule says when a field must or need not be there.
type rule uint8

const (
	optional  rule = iota // always written; its zero value when absent
	required              // always written; an error when absent
	omitEmpty             // written when not empty; its zero value when absent
)

func newMessage(name []byte) Message {
	switch string(name) {
	case NameAllocRequest:
		return new(AllocRequest)
	case NameAllocResponse:
		return new(AllocResponse)
	case NameProxyNotif:
		return new(ProxyNotif)
	case NameCancelNotif:
		return new(CancelNotif)
	case NameAttachRequest:
		return new(AttachRequest)
	case NameAttachResponse:
		return new(AttachResponse)
	case NameCommitRequest:
		return new(CommitRequest)
	case NameCommitResponse:
		return new(CommitResponse)
	case NameHeartbeat:
		return new(Heartbeat)
	case NameTakeRequest:
		return new(TakeRequest)
	case NameTakeResponse:
		return new(TakeResponse)
	case NameReleaseRequest:
		return new(ReleaseRequest)
	case NameReleaseResponse:
		return new(ReleaseResponse)
	case NameStatRequest:
		return new(StatRequest)
	case NameFailNotif:
		return new(FailNotif)
	case NameReadyRequest:
		return new(ReadyRequest)
	case NameReadyResponse:
		return new(ReadyResponse)
	}
	return nil
}

// maxBytes is the limit for a message of m's type.
func maxBytes(m Message) int {
	switch m.(type) {
	case *AttachResponse, *TakeResponse, report:
		return MaxResponse
	}
	return MaxMessage
}

func (*AllocRequest) name() string    { return NameAllocRequest }
func (*AllocResponse) name() string   { return NameAllocResponse }
func (*ProxyNotif) name() string      { return NameProxyNotif }
func (*CancelNotif) name() string     { return NameCancelNotif }
func (*AttachRequest) name() string   { return NameAttachRequest }
func (*AttachResponse) name() string  { return NameAttachResponse }
func (*CommitRequest) name() string   { return NameCommitRequest }
func (*CommitResponse) name() string  { return NameCommitResponse }
func (*Heartbeat) name() string       { return NameHeartbeat }
func (*TakeRequest) name() string     { return NameTakeRequest }
func (*TakeResponse) name() string    { return NameTakeResponse }
func (*ReleaseRequest) name() string  { return NameReleaseRequest }
func (*ReleaseResponse) name() string { return NameReleaseResponse }
func (*StatRequest) name() string     { return NameStatRequest }
func (*Snapshot) name() string        { return NameSnapshot }
func (*SenderSnapshot) name() string  { return NameSnapshot }
func (*ProxySnapshot) name() string   { return NameSnapshot }
func (*Event) name() string           { return NameEvent }
func (*FailNotif) name() string       { return NameFailNotif }
func (*ReadyRequest) name() string    { return NameReadyRequest }
func (*ReadyResponse) name() string   { return NameReadyResponse }

func (m *AllocRequest) fields(fs []field) []field {
	return append(fs,
		field{"keys", required, MaxKeys, (*keyList)(&m.Keys)},
		field{"fmt", required, 0, &m.Fmt},
		field{"shape", required, MaxShape, &m.Shape},
		field{"dtype", required, MaxName, &m.Dtype},
		field{"last_chunk_toks", required, 0, &m.LastChunkToks},
		field{"req_id", optional, MaxReqID, &m.ReqID},
		field{"is_last_batch", optional, 0, &m.IsLastBatch},
		field{"total_chunks", optional, 0, &m.TotalChunks},
		field{"epoch", omitEmpty, 0, &m.Epoch},
	)
}

func (m *AllocResponse) fields(fs []field) []field {
	return append(fs,
		field{"remote_indexes", required, MaxKeys, &m.RemoteIndexes},
		field{"already_sent_indexes", optional, MaxKeys, &m.AlreadySentIndexes},
		field{"error", omitEmpty, 0, &m.Error},
		field{"code", omitEmpty, 0, &m.Code},
		field{"epoch", omitEmpty, 0, &m.Epoch},
		field{"regions", omitEmpty, MaxKeys, (*regionList)(&m.Regions)},
		field{"access", omitEmpty, MaxKeys, (*accessList)(&m.Access)},
	)
}

func (m *ProxyNotif) fields(fs []field) []field {
	return append(fs, field{"req_id", required, MaxReqID, &m.ReqID})
}

func (m *CancelNotif) fields(fs []field) []field {
	return append(fs,
		field{"req_id", required, MaxReqID, &m.ReqID},
		field{"keys", required, MaxKeys, (*keyList)(&m.Keys)},
	)
}

func (m *AttachRequest) fields(fs []field) []field {
	return append(fs,
		field{"name", optional, MaxName, &m.Name},
		field{"version", required, 0, &m.Version},
		field{"slot_size", optional, 0, &m.SlotSize},
		field{"engines", required, MaxEngines, (*nameList)(&m.Engines)},
		field{"byte_order", omitEmpty, MaxName, &m.ByteOrder},
	)
}

func (m *AttachResponse) fields(fs []field) []field {
	return append(fs,
		field{"error", omitEmpty, 0, &m.Error},
		field{"code", omitEmpty, 0, &m.Code},
		field{"version", optional, 0, &m.Version},
		field{"engine", optional, MaxName, &m.Engine},
		field{"token", optional, 0, &m.Token},
		field{"regions", optional, 0, &m.Regions},
		field{"slot_size", optional, 0, &m.SlotSize},
		field{"slot_count", optional, 0, &m.SlotCount},
		field{"lease_ms", optional, 0, &m.LeaseMS},
		field{"receiver_id", optional, MaxName, &m.ReceiverID},
		field{"epoch", optional, 0, &m.Epoch},
		field{"max_message", optional, 0, &m.MaxMessage},
		field{"max_keys", optional, 0, &m.MaxKeys},
		field{"one_frame", omitEmpty, 0, &m.OneFrame},
	)
}

func (m *Region) fields(fs []field) []field {
	return append(fs,
		field{"id", required, 0, &m.ID},
		field{"desc", required, 0, &m.Desc},
	)
}

func (m *CommitRequest) fields(fs []field) []field {
	return append(fs,
		field{"req_id", required, MaxReqID, &m.ReqID},
		field{"slots", required, MaxKeys, &m.Slots},
		field{"lengths", required, MaxKeys, &m.Lengths},
		field{"crcs", required, MaxKeys, &m.CRCs},
		field{"epoch", omitEmpty, 0, &m.Epoch},
	)
}

func (m *CommitResponse) fields(fs []field) []field {
	return append(fs,
		field{"error", omitEmpty, 0, &m.Error},
		field{"code", omitEmpty, 0, &m.Code},
		field{"ready", optional, 0, &m.Ready},
	)
}

func (m *Heartbeat) fields(fs []field) []field {
	return append(fs, field{"epoch", omitEmpty, 0, &m.Epoch})
}

func (m *TakeRequest) fields(fs []field) []field {
	return append(fs, field{"req_id", required, MaxReqID, &m.ReqID})
}

func (m *TakeResponse) fields(fs []field) []field {
	return append(fs,
		field{"error", omitEmpty, 0, &m.Error},
		field{"code", omitEmpty, 0, &m.Code},
		field{"req_id", optional, MaxReqID, &m.ReqID},
		field{"chunks", optional, 0, &m.Chunks},
		field{"slot_size", optional, 0, &m.SlotSize},
		field{"slot_count", optional, 0, &m.SlotCount},
		field{"lease_ms", optional, 0, &m.LeaseMS},
		field{"receiver_id", optional, MaxName, &m.ReceiverID},
		field{"token", optional, 0, &m.Token},
		field{"regions", optional, 0, &m.Regions},
	)
}

func (m *TakenChunk) fields(fs []field) []field {
	return append(fs,
		field{"key", required, MaxKey, &m.Key},
		field{"slot", required, 0, &m.Slot},
		field{"region", optional, 0, &m.Region},
		field{"length", required, 0, &m.Length},
		field{"crc", optional, 0, &m.CRC},
		field{"has_crc", optional, 0, &m.HasCRC},
	)
}

func (m *ReleaseRequest) fields(fs []field) []field {
	return append(fs,
		field{"req_id", required, MaxReqID, &m.ReqID},
		field{"keep", optional, 0, &m.Keep},
	)
}

func (m *ReleaseResponse) fields(fs []field) []field {
	return append(fs,
		field{"error", omitEmpty, 0, &m.Error},
		field{"code", omitEmpty, 0, &m.Code},
	)
}

func (m *StatRequest) fields(fs []field) []field { return fs }

func (m *FailNotif) fields(fs []field) []field {
	return append(fs,
		field{"req_id", required, MaxReqID, &m.ReqID},
		field{"reason", required, 0, &m.Reason},
	)
}

func (m *ReadyRequest) fields(fs []field) []field {
	return append(fs,
		field{"epoch", omitEmpty, 0, &m.Epoch},
		field{"after", omitEmpty, 0, &m.After},
	)
}

func (m *ReadyResponse) fields(fs []field) []field {
	return append(fs,
		field{"error", omitEmpty, 0, &m.Error},
		field{"code", omitEmpty, 0, &m.Code},
		field{"epoch", optional, 0, &m.Epoch},
		field{"entries", optional, MaxReadyList, &m.Entries},
		field{"more", optional, 0, &m.More},
	)
}

func (m *ReadyEntry) fields(fs []field) []field {
	return append(fs,
		field{"seq", required, 0, &m.Seq},
		field{"req_id", required, MaxReqID, &m.ReqID},
	)
}
