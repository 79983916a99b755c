// SPDX-License-Identifier: Apache-2.0

package controllers

// fairQueue is the queue of a loop in which namespaces take turns: of those that have keys waiting, one of each
// is worked on before the second of any. A tenant with 100,000 objects that fail, or that are all queued when the
// process starts, so keeps the key of another one waiting for as many keys as there are
// namespaces, and not for all of his. Within a namespace it is first come, first served; keys
// without a namespace are together one.
//
// It implements workqueue.Queue, whose owner calls it one at a time.
type fairQueue[K comparable] struct {
	by   map[string]*waiting[K] // by namespace
	next []*waiting[K]          // that have keys; the first has its turn
	keys int
}

// waiting are the keys of one namespace.
type waiting[K comparable] struct {
	namespace string
	keys      []K
}

func newFairQueue[K comparable]() *fairQueue[K] { return &fairQueue[K]{by: map[string]*waiting[K]{}} }

// namespaceOf is the namespace that a key is about; "" = none, or none that is known.
func namespaceOf(key any) string {
	if k, ok := key.(interface {
		Parts() (namespace, name string)
	}); ok {
		namespace, _ := k.Parts()
		return namespace
	}
	return ""
}

// Touch implements workqueue.Queue.
func (*fairQueue[K]) Touch(K) {}

// Push implements workqueue.Queue.
func (q *fairQueue[K]) Push(key K) {
	namespace := namespaceOf(key)
	l := q.by[namespace]
	if l == nil {
		l = &waiting[K]{namespace: namespace}
		q.by[namespace], q.next = l, append(q.next, l)
	}
	l.keys = append(l.keys, key)
	q.keys++
}

// Len implements workqueue.Queue.
func (q *fairQueue[K]) Len() int { return q.keys }

// Pop implements workqueue.Queue.
func (q *fairQueue[K]) Pop() K {
	var none K
	l := q.next[0]
	key := l.keys[0]
	l.keys[0] = none // not kept alive by the slice
	l.keys = l.keys[1:]
	q.keys--
	q.next[0] = nil
	q.next = q.next[1:]
	if len(l.keys) > 0 {
		q.next = append(q.next, l)
	} else {
		delete(q.by, l.namespace)
	}
	return key
}
