package shm

import "encoding/json"

func playBench(in *json.Decoder) error { return nil }
