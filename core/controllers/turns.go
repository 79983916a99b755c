// SPDX-License-Identifier: Apache-2.0

package controllers

// turns is the queue of a loop in which each namespace has its turn: of those that have keys waiting, one of each
// is worked on before the second of any. A tenant with 100,000 objects that fail, or that are all queued when the
// process starts, so keeps the key of another one waiting for as many keys as there are
// namespaces, and not for all of his. Within a namespace it is first come, first served; keys
// without a namespace are together one.
//
// It implements workqueue.Queue, whose owner calls it one at a time.
type turns[K comparable] struct {
	lines map[string]*line[K]
	next  []*line[K] // that have keys; the first has its turn
	keys  int
}

// line is what waits of one namespace.
type line[K comparable] struct {
	namespace string
	keys      []K
}

func newTurns[K comparable]() *turns[K] { return &turns[K]{lines: map[string]*line[K]{}} }

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
func (*turns[K]) Touch(K) {}

// Push implements workqueue.Queue.
func (t *turns[K]) Push(key K) {
	namespace := namespaceOf(key)
	l := t.lines[namespace]
	if l == nil {
		l = &line[K]{namespace: namespace}
		t.lines[namespace], t.next = l, append(t.next, l)
	}
	l.keys = append(l.keys, key)
	t.keys++
}

// Len implements workqueue.Queue.
func (t *turns[K]) Len() int { return t.keys }

// Pop implements workqueue.Queue.
func (t *turns[K]) Pop() K {
	var none K
	l := t.next[0]
	key := l.keys[0]
	l.keys[0] = none // not kept alive by the slice
	l.keys = l.keys[1:]
	t.keys--
	t.next[0] = nil
	t.next = t.next[1:]
	if len(l.keys) > 0 {
		t.next = append(t.next, l)
	} else {
		delete(t.lines, l.namespace)
	}
	return key
}
