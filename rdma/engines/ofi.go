//go:build !noofi

package engines

import "github.com/pd-tools/pd-tools/rdma/ofi"

var across = []engine{
	{ofi.Name, ofi.Serve, ofi.Attach},
}
