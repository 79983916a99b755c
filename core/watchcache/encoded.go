package watchcache

import (
	"sync"
	"weak"

	"github.com/wasmplane/wasmplane/core/object"
)

// encodedBudget bounds the forms that items' objects make of themselves: it is
// their holder. Objects stand in a queue in the order in which they made
// something; where there is too much the first one drops it, unless it was asked for
// again since: then it goes to the end. Objects that nobody else holds are not kept alive.
type encodedBudget struct {
	limit int64

	mu    sync.Mutex
	bytes int64
	queue []charge
}

type charge struct {
	object weak.Pointer[object.Object]
	size   int64
}

// Made implements object.Holder.
func (e *encodedBudget) Made(o *object.Object, size int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bytes += int64(size)
	e.queue = append(e.queue, charge{weak.Make(o), int64(size)})
	// Each look at a charge either drops it or takes its second chance away.
	for e.bytes > e.limit && len(e.queue) > 1 {
		first := e.queue[0]
		e.queue[0] = charge{}
		e.queue = e.queue[1:]
		old := first.object.Value()
		if old != nil && old != o && old.TakeUsed() {
			e.queue = append(e.queue, first)
			continue
		}
		e.bytes -= first.size
		if old != nil {
			old.DropEncoded()
		}
	}
}
