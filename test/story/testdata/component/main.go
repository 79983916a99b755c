// SPDX-License-Identifier: Apache-2.0

// Command component is the HTTP server of the stories that is a component: wasi:http/incoming-handler of
// WASI 0.2, by the functions that world.wit has, as core code calls them.
package main

import (
	"os"
	"unsafe"
)

//go:wasmimport wasi:http/types@0.2.0 [constructor]fields
func newFields() int32

//go:wasmimport wasi:http/types@0.2.0 [constructor]outgoing-response
func newResponse(fields int32) int32

//go:wasmimport wasi:http/types@0.2.0 [method]outgoing-response.body
func responseBody(response int32, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [method]outgoing-body.write
func bodyWrite(body int32, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [static]outgoing-body.finish
func bodyFinish(body, some, trailers int32, result unsafe.Pointer)

//go:wasmimport wasi:http/types@0.2.0 [static]response-outparam.set
func setResponse(out, failed, response int32)

//go:wasmimport wasi:io/streams@0.2.0 [method]output-stream.blocking-write-and-flush
func write(stream int32, data unsafe.Pointer, size int32, result unsafe.Pointer)

//go:wasmimport wasi:io/streams@0.2.0 [resource-drop]output-stream
func dropStream(stream int32)

var requests int

//go:wasmexport wasi:http/incoming-handler@0.2.0#handle
func handle(_, out int32) {
	requests++
	var result [4]int32 // the case of a result, and what it has
	response := newResponse(newFields())
	responseBody(response, unsafe.Pointer(&result))
	body := result[1]
	setResponse(out, 0, response)
	bodyWrite(body, unsafe.Pointer(&result))
	stream := result[1]
	text := "a component says " + os.Getenv("GREETING")
	if requests > 1 {
		text += " once more"
	}
	text += "\n"
	write(stream, unsafe.Pointer(unsafe.StringData(text)), int32(len(text)), unsafe.Pointer(&result))
	dropStream(stream)
	bodyFinish(body, 0, 0, unsafe.Pointer(&result))
}

func main() {}
