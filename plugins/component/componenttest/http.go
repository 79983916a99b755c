// SPDX-License-Identifier: Apache-2.0

package componenttest

// HTTPServer is a component that exports wasi:http/incoming-handler, whose handler has this body. It has a request and a response-outparam
// ($in, $out), and 16 bytes of results at 0; a text of 6 bytes lies at 100, and a number that counts requests of this instance at 200.
func HTTPServer(handler string) *Component {
	c := New()
	io := &InstanceType{}
	stream := io.Resource("output-stream")
	bytes := Ref(io.Type(byte(0x70), U8))
	lent := Ref(io.Type(byte(0x68), stream))
	written := Ref(io.Type(byte(0x6a), byte(0), byte(1), U8))
	io.Func("[method]output-stream.blocking-write-and-flush", written, lent, bytes)
	streams := c.ImportInstance("wasi:io/streams@0.2.0", c.InstanceType(io))
	streamType := c.Alias(TypeSort, streams, "output-stream")

	it := &InstanceType{}
	it.Outer(1, streamType)
	own := func(resource int) Type { return Ref(it.Type(byte(0x69), resource)) }
	borrow := func(resource int) Type { return Ref(it.Type(byte(0x68), resource)) }
	fields, response := it.Resource("fields"), it.Resource("outgoing-response")
	body, outparam := it.Resource("outgoing-body"), it.Resource("response-outparam")
	it.Resource("incoming-request")
	given := func(t Type) Type { return Ref(it.Type(byte(0x6a), byte(1), t, byte(0))) }
	it.Func("[constructor]fields", own(fields))
	it.Func("[constructor]outgoing-response", own(response), own(fields))
	it.Func("[method]outgoing-response.body", given(own(body)), borrow(response))
	it.Func("[method]outgoing-body.write", given(own(0)), borrow(body))
	set := Ref(it.Type(byte(0x6a), byte(1), own(response), byte(1), U8))
	it.Func("[static]response-outparam.set", "", own(outparam), set)
	trailers := Ref(it.Type(byte(0x6b), own(fields)))
	finished := Ref(it.Type(byte(0x6a), byte(0), byte(1), U8))
	it.Func("[static]outgoing-body.finish", finished, own(body), trailers)
	types := c.ImportInstance("wasi:http/types@0.2.0", c.InstanceType(it))

	memory := c.Instantiate(c.Core(`(module (memory (export "memory") 1) (data (i32.const 100) "hello\n"))`))
	mem := c.Memory(memory, "memory")
	var imports []Arg
	lower := func(instance int, name, as string, opts ...Option) {
		imports = append(imports, Arg{Name: as, Sort: 0, Index: c.Lower(c.Alias(Func, instance, name), opts...)})
	}
	lower(types, "[constructor]fields", "fields")
	lower(types, "[constructor]outgoing-response", "response")
	lower(types, "[method]outgoing-response.body", "body", Mem(mem))
	lower(types, "[method]outgoing-body.write", "write", Mem(mem))
	lower(types, "[static]response-outparam.set", "set")
	lower(types, "[static]outgoing-body.finish", "finish", Mem(mem))
	lower(streams, "[method]output-stream.blocking-write-and-flush", "put", Mem(mem))
	main := c.Instantiate(c.Core(`(module
  (import "h" "fields" (func $fields (result i32)))
  (import "h" "response" (func $response (param i32) (result i32)))
  (import "h" "body" (func $body (param i32 i32)))
  (import "h" "write" (func $write (param i32 i32)))
  (import "h" "set" (func $set (param i32 i32 i32)))
  (import "h" "finish" (func $finish (param i32 i32 i32 i32)))
  (import "h" "put" (func $put (param i32 i32 i32 i32)))
  (import "m" "memory" (memory 1))
  (func (export "handle") (param $in i32) (param $out i32) (local $r i32) (local $b i32) (local $s i32)
    (i32.store8 (i32.const 200) (i32.add (i32.load8_u (i32.const 200)) (i32.const 1)))
    `+handler+`))`), Arg{Name: "h", Index: c.Bundle(imports...)}, Arg{Name: "m", Index: memory})
	in := c.Own(c.Alias(TypeSort, types, "incoming-request"))
	out := c.Own(c.Alias(TypeSort, types, "response-outparam"))
	handle := c.Lift(c.CoreFunc(main, "handle"), c.FuncType("", in, out))
	c.Raw(5, 1, byte(1), 1, byte(0), "handle", Func, handle) // the first instance of its own, after two imports
	c.Export("wasi:http/incoming-handler@0.2.0", Instances, 2)
	return c
}

// Bodies of handlers for HTTPServer: an answer of "hell1\n", whose digit is the number of the instance's requests, and the same without its
// end.
const (
	HTTPAnswer     = HTTPHalfAnswer + finishAnswer
	HTTPHalfAnswer = `(local.set $r (call $response (call $fields)))
    (call $body (local.get $r) (i32.const 0)) (local.set $b (i32.load (i32.const 4)))
    (call $set (local.get $out) (i32.const 0) (local.get $r))
    (call $write (local.get $b) (i32.const 0)) (local.set $s (i32.load (i32.const 4)))
    (i32.store8 (i32.const 104) (i32.add (i32.const 48) (i32.load8_u (i32.const 200))))
    (call $put (local.get $s) (i32.const 100) (i32.const 6) (i32.const 0))`
	finishAnswer = `(call $finish (local.get $b) (i32.const 0) (i32.const 0) (i32.const 0))`
)
