// A policy that speaks waPC, written against its specification alone. What it does is
// said by its settings, so that a test can have it do anything:
//
//	refuse:  message with which the settings are refused
//	answer:  what validate answers, as it is
//	label:   label that is put on the object
//	calls:   host calls to make; their replies become warnings, their errors too
//	fail:    error that validate ends with
//	flood:   host calls are made for ever
package main

import (
	"encoding/json"
	"fmt"
	"unsafe"
)

//go:wasmimport wapc __guest_request
func guestRequest(op, payload unsafe.Pointer)

//go:wasmimport wapc __guest_response
func guestResponse(p unsafe.Pointer, n uint32)

//go:wasmimport wapc __guest_error
func guestError(p unsafe.Pointer, n uint32)

//go:wasmimport wapc __host_call
func hostCall(bd unsafe.Pointer, bdLen uint32, ns unsafe.Pointer, nsLen uint32, op unsafe.Pointer, opLen uint32, p unsafe.Pointer, n uint32) uint32

//go:wasmimport wapc __host_response_len
func hostResponseLen() uint32

//go:wasmimport wapc __host_response
func hostResponse(p unsafe.Pointer)

//go:wasmimport wapc __host_error_len
func hostErrorLen() uint32

//go:wasmimport wapc __host_error
func hostError(p unsafe.Pointer)

//go:wasmimport wapc __console_log
func consoleLog(p unsafe.Pointer, n uint32)

func main() {}

type call struct {
	Binding, Namespace, Operation string
	Payload                       json.RawMessage
}

type settings struct {
	Refuse string
	Answer json.RawMessage
	Label  string
	Calls  []call
	Panic  string
	Fail   string
	Flood  bool
}

func at(b []byte) (unsafe.Pointer, uint32) {
	return unsafe.Pointer(unsafe.SliceData(b)), uint32(len(b))
}

func (c call) do() (string, error) {
	if c.Binding == "" {
		c.Binding = "kubewarden"
	}
	bd, bdLen := at([]byte(c.Binding))
	ns, nsLen := at([]byte(c.Namespace))
	op, opLen := at([]byte(c.Operation))
	p, n := at(c.Payload)
	if hostCall(bd, bdLen, ns, nsLen, op, opLen, p, n) == 1 {
		out := make([]byte, hostResponseLen()+1)
		hostResponse(unsafe.Pointer(&out[0]))
		return string(out[:len(out)-1]), nil
	}
	out := make([]byte, hostErrorLen()+1)
	hostError(unsafe.Pointer(&out[0]))
	return "", fmt.Errorf("%s", out[:len(out)-1])
}

//go:wasmexport __guest_call
func guestCall(opLen, payloadLen uint32) uint32 {
	op, payload := make([]byte, opLen+1), make([]byte, payloadLen+1)
	guestRequest(unsafe.Pointer(&op[0]), unsafe.Pointer(&payload[0]))
	answer, err := run(string(op[:opLen]), payload[:payloadLen])
	if err != nil {
		guestError(at([]byte(err.Error())))
		return 0
	}
	guestResponse(at(answer))
	return 1
}

func run(op string, payload []byte) ([]byte, error) {
	switch op {
	case "protocol_version":
		return []byte(`"v1"`), nil
	case "validate_settings":
		var s settings
		if err := json.Unmarshal(payload, &s); err != nil {
			return nil, err
		}
		return json.Marshal(map[string]any{"valid": s.Refuse == "", "message": s.Refuse})
	case "validate":
		return validate(payload)
	}
	return nil, fmt.Errorf("unknown operation %s", op)
}

func validate(payload []byte) ([]byte, error) {
	var q struct {
		Request struct {
			Operation       string
			Object          map[string]any
			RequestKind     struct{ Kind string }
			RequestResource struct{ Resource string }
		}
		Settings settings
	}
	if err := json.Unmarshal(payload, &q); err != nil {
		return nil, err
	}
	s := q.Settings
	if s.Panic != "" {
		panic(s.Panic)
	}
	if s.Fail != "" {
		return nil, fmt.Errorf("%s", s.Fail)
	}
	for s.Flood {
		call{Namespace: "tracing", Operation: "log", Payload: []byte("{}")}.do()
	}
	if s.Answer != nil {
		return s.Answer, nil
	}
	consoleLog(at([]byte("looking at a " + q.Request.RequestKind.Kind)))
	warnings := []string{}
	for _, c := range s.Calls {
		reply, err := c.do()
		if err != nil {
			reply = "error: " + err.Error()
		}
		warnings = append(warnings, reply)
	}
	out := map[string]any{"accepted": true, "warnings": warnings, "audit_annotations": map[string]string{"seen": q.Request.RequestResource.Resource}}
	if s.Label != "" {
		meta := map[string]any{}
		if q.Request.Object != nil {
			meta, _ = q.Request.Object["metadata"].(map[string]any)
		} else {
			q.Request.Object = map[string]any{"metadata": meta}
		}
		labels, _ := meta["labels"].(map[string]any)
		if labels == nil {
			labels = map[string]any{}
		}
		labels["label"] = s.Label
		meta["labels"] = labels
		out["mutated_object"] = q.Request.Object
	}
	return json.Marshal(out)
}
