// SPDX-License-Identifier: Apache-2.0

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
	Name: "conformance", Version: "1.2.3", SettingsSchema: `{"required": ["key"]}`,
	Settings: func(s wasmplane.Value) error {
		if refuse := s.Get("refuse"); refuse.Exists() {
			return errors.New(refuse.String())
		}
		key, settings = s.Get("key").String(), s
		return nil
	},
	Groups: func() *wasmplane.Groups {
		return &wasmplane.Groups{Of: "pod.metadata.namespace", Names: map[string]string{"red": "a", "crimson": "a"}, Other: `b "c"`}
	},
	Mutate: &wasmplane.Admission{
		Match: []wasmplane.Rule{{Operations: []string{"CREATE"}, Groups: []string{""}, Versions: []string{"v1"}, Resources: []string{"pods"}}},
		Decide: func(in wasmplane.Input, out *wasmplane.Decision) {
			if in.Get("whole").Exists() {
				out.SetObject(wasmplane.Object{"kind": "Pod", "was": in.Get("whole")})
				return
			}
			out.Add("/echo", in.Root())
			out.Add("/metadata/labels/"+wasmplane.Token(key), string(wasmplane.JSON(settings)))
			out.Replace("/spec/replicas", in.Get("spec.replicas").Int()+1)
			out.Remove("/spec/paused")
			out.Warn("careful \"now\"\n")
			out.Audit("key", key)
		},
	},
	Validate: &wasmplane.Admission{
		Fields:       []string{"object.metadata.name", "object.metadata.labels", "operation"},
		Alternatives: map[string]map[string]string{"@size": {"Deployment": "spec.replicas", "*": "spec.size"}},
		SideEffects:  wasmplane.NoneOnDryRun,
		Decide: func(in wasmplane.Input, out *wasmplane.Decision) {
			switch in.Get("operation").String() {
			case "CREATE":
				out.DenyField("metadata.name", "not "+in.Get("object.metadata.name").String())
				out.Code(422)
			case "DELETE":
				out.Deny("in use")
				out.Reason("Conflict")
			case "CONNECT":
				wasmplane.Fail("cannot tell")
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
		Pure:   true,
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
		Events: []wasmplane.Event{wasmplane.NodeAdded, wasmplane.PodRemoved},
		Never: func(in wasmplane.Input) string {
			if strings.HasPrefix(in.Get("node.metadata.name").String(), "worst") {
				return "node(s) were worst"
			}
			return ""
		},
		Fits: func(in wasmplane.Input) string {
			if strings.HasPrefix(in.Get("node.metadata.name").String(), "bad") {
				return "node(s) were bad"
			}
			return ""
		},
	},
	Score: &wasmplane.Score{Fields: []string{"pods"}, Rate: rate},
	PreEnqueue: &wasmplane.Gate{
		Fields: []string{"pod.metadata.labels"}, Events: []wasmplane.Event{wasmplane.PodChanged},
		Decide: func(in wasmplane.Input) string {
			if gate := in.Get("pod.metadata.labels").Get("gate"); gate.Exists() {
				return "waits for " + gate.String()
			}
			return ""
		},
	},
	QueueSort: &wasmplane.QueueSort{
		Fields: []string{"pod.spec.priority"},
		Rank:   func(in wasmplane.Input) int64 { return 10 * in.Get("pod.spec.priority").Int() },
	},
	PreFilter:  &wasmplane.PreFilter{Fields: []string{"pod.metadata.name", "nodes"}, Decide: prefilter},
	PostFilter: &wasmplane.PostFilter{Fields: []string{"pod.metadata.name", "failed[*].node"}, Pure: true, Decide: postfilter},
	PreScore: &wasmplane.PreScore{Fields: []string{"nodes"}, Decide: func(in wasmplane.Input, out *wasmplane.Preparation) {
		if n := in.Get("nodes").Len(); n == 1 {
			out.Skip()
		} else {
			out.Keep(n)
		}
	}},
	Normalize: &wasmplane.Normalize{Fields: []string{"state"}, Scale: func(in wasmplane.Input, scores []int64) {
		for i := range scores {
			scores[i] *= in.Get("state").Int()
		}
	}},
	Reserve:   &wasmplane.Gate{Fields: []string{"nodeName"}, Decide: refuse("full", "node full is full")},
	Unreserve: &wasmplane.Notice{Fields: []string{"nodeName"}, Do: fail},
	Permit:    &wasmplane.Permit{Fields: []string{"nodeName", "waitedSeconds"}, Decide: permit},
	PreBind:   &wasmplane.Gate{Fields: []string{"nodeName"}, Decide: refuse("unready", "not ready")},
	Bind:      &wasmplane.Bind{Fields: []string{"nodeName"}, Decide: bind},
	PostBind:  &wasmplane.Notice{Fields: []string{"nodeName"}, Do: fail},
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

func prefilter(in wasmplane.Input, out *wasmplane.Selection) {
	switch in.Get("pod.metadata.name").String() {
	case "none":
		out.Refuse("no node for none")
	case "never":
		out.Never("never runs")
	case "skip":
		out.Skip()
	case "state":
		out.Keep(wasmplane.Object{"zone": "a"})
	case "narrow":
		out.Only(in.Get("nodes").At(0).String())
	case "nowhere":
		out.Only()
	}
}

func postfilter(in wasmplane.Input, out *wasmplane.Nomination) {
	if in.Get("pod.metadata.name").String() == "owner" {
		out.Reclaim("a", wasmplane.Amounts{"milliCPU": 64000, "example.com/gpu": 8})
		out.ReclaimBelow(`b "c"`, -100)
		return
	}
	if in.Get("pod.metadata.name").String() != "urgent" {
		out.Explain("nothing to evict")
		return
	}
	out.Nominate(in.Get("failed[*].node").At(0).String())
	out.Evict("default", "victim", "u1")
}

func refuse(node, reason string) func(wasmplane.Input) string {
	return func(in wasmplane.Input) string {
		if in.Get("nodeName").String() == node {
			return reason
		}
		return ""
	}
}

func fail(in wasmplane.Input) {
	if in.Get("nodeName").String() == "broken" {
		wasmplane.Fail("it broke")
	}
}

func permit(in wasmplane.Input) wasmplane.Permission {
	switch node := in.Get("nodeName").String(); {
	case node == "hold" && in.Get("waitedSeconds").Float() < 5:
		return wasmplane.Wait(2.5, "hold on")
	case node == "no":
		return wasmplane.Reject("no")
	}
	return wasmplane.Proceed()
}

func bind(in wasmplane.Input, out *wasmplane.Binding) {
	switch in.Get("nodeName").String() {
	case "plain":
		out.Bind()
	case "noted":
		out.Annotate("example.com/by", `me "x"`)
	case "refused":
		out.Refuse("not there")
	}
}

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
	if name == "db" {
		scale := out.Patch(wasmplane.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "db", Subresource: "scale"})
		scale.Test("/spec/replicas", 3)
		scale.Replace("/spec/replicas", 0)
		out.DeleteTarget(wasmplane.Target{
			APIVersion: "v1", Kind: "Service", Name: "old", UID: "u-1", ResourceVersion: "7",
			Propagation: "Foreground",
		})
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
