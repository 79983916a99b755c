// The conformance guest in Go: it does what the guests in other languages do.
package main

import (
	"errors"
	"strings"

	wasmplane "github.com/wasmplane/wasmplane/sdk/go"
)

var key string

var settings wasmplane.Value

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "conformance", Version: "1.2.3",
	Settings: func(s wasmplane.Value) error {
		if refuse := s.Get("refuse"); refuse.Exists() {
			return errors.New(refuse.String())
		}
		key, settings = s.Get("key").String(), s
		return nil
	},
	Mutate: &wasmplane.Admission{
		Match: []wasmplane.Rule{{Operations: []string{"CREATE"}, Groups: []string{""}, Versions: []string{"v1"}, Resources: []string{"pods"}}},
		Decide: func(in wasmplane.Input, out *wasmplane.Decision) {
			out.Add("/echo", in.Root())
			out.Add("/metadata/labels/"+wasmplane.Token(key), string(wasmplane.JSON(settings)))
			out.Replace("/spec/replicas", in.Get("spec.replicas").Int()+1)
			out.Remove("/spec/paused")
			out.Warn("careful \"now\"\n")
			out.Audit("key", key)
		},
	},
	Validate: &wasmplane.Admission{
		Fields: []string{"object.metadata.name", "object.metadata.labels", "operation"},
		Decide: func(in wasmplane.Input, out *wasmplane.Decision) {
			if in.Get("operation").String() == "CREATE" {
				out.DenyField("metadata.name", "not "+in.Get("object.metadata.name").String())
				out.Code(422)
			}
		},
	},
	Convert: &wasmplane.Admission{
		Match:  []wasmplane.Rule{wasmplane.Resources("endpoints").In("example.com")},
		Fields: []string{"object.spec.hostPort", "desiredAPIVersion"},
		Decide: func(in wasmplane.Input, out *wasmplane.Decision) {
			if !in.Get("object.spec.hostPort").Exists() {
				out.Deny("no hostPort")
				return
			}
			out.Move("/spec/hostPort", "/spec/address")
			out.Add("/spec/as", in.Get("desiredAPIVersion").String())
		},
	},
	ValidateCustom: &wasmplane.Admission{
		Fields: []string{"object.spec.port"},
		Decide: func(in wasmplane.Input, out *wasmplane.Decision) {
			if in.Get("object.spec.port").Int() > 9 {
				out.Cause("spec.port", "too \"high\"")
				out.Cause("spec.name", "missing")
			}
		},
	},
	Authorize: &wasmplane.Authorizer{
		Fields: []string{"user", "resourceAttributes.namespace"},
		Decide: func(in wasmplane.Input) wasmplane.Verdict {
			switch user := in.Get("user").String(); {
			case user == "root":
				return wasmplane.Allow("root may")
			case in.Get("resourceAttributes.namespace").String() == "closed":
				return wasmplane.Deny("closed to " + user)
			}
			return wasmplane.NoOpinion()
		},
	},
	Filter: &wasmplane.Filter{
		Fields: []string{"node.metadata.name"},
		Fits: func(in wasmplane.Input) string {
			if strings.HasPrefix(in.Get("node.metadata.name").String(), "bad") {
				return "node(s) were bad"
			}
			return ""
		},
	},
	Score: &wasmplane.Score{Fields: []string{"pods"}, Rate: rate},
	Table: &wasmplane.Table{
		Columns: []wasmplane.Column{{Path: "pods", Type: wasmplane.Int}, {Path: "allocatable.pods", Type: wasmplane.Int}},
		Pod:     []wasmplane.Column{{Path: "requests.milliCPU", Type: wasmplane.Int}},
		Reasons: []string{"full", "never"},
		Judge: func(pod, node []int64) wasmplane.Judgement {
			switch room := node[1] - node[0]; {
			case room <= 0:
				return wasmplane.Never(1)
			case pod[0] > room:
				return wasmplane.Unfit(0)
			default:
				return wasmplane.Fits(room)
			}
		},
	},
	Reconcile: &wasmplane.Reconciler{
		Primary: wasmplane.Watch{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment", Selector: "app=web"},
		Owned:   []wasmplane.Watch{{Version: "v1", Resource: "services", Kind: "Service"}},
		Plan:    plan,
	},
	NodeAdmission: &wasmplane.NodeAdmission{
		Fields: []string{"pod.spec.hostNetwork"},
		Admit: func(in wasmplane.Input) (reason, message string) {
			if in.Get("pod.spec.hostNetwork").Bool() {
				return "HostNetwork", "no"
			}
			return "", ""
		},
	},
})

func rate(in wasmplane.Input) int {
	pods := int(in.Get("pods").Int())
	switch pods {
	case 7:
		reply, err := wasmplane.Call("test.echo", []byte(`{"n":3000}`))
		if err != nil {
			return 0
		}
		v, err := wasmplane.ParseJSON(reply)
		if err != nil {
			return 0
		}
		return len(v.Get("text").String()) / 100
	case 8:
		if _, err := wasmplane.Call("test.none", nil); err != nil {
			return 99
		}
	}
	return 3 * pods
}

func plan(in wasmplane.Input, out *wasmplane.Plan) error {
	name, primary := in.Get("name").String(), in.Get("primary")
	if primary.IsNull() {
		out.Delete("v1", "Service", in.Get("namespace").String(), name)
		return nil
	}
	if name == "broken" {
		return errors.New(`broken "` + name + `"`)
	}
	out.Apply(wasmplane.Object{
		"apiVersion": "v1", "kind": "Service",
		"metadata": wasmplane.Object{"name": name}, "spec": primary.Get("spec"),
	})
	out.Status(wasmplane.Object{"seen": true})
	out.Condition("Ready", "True", "Made", "made it")
	out.Event("Normal", "Made", "made "+name)
	out.Requeue(30)
	return nil
}

func main() {}
