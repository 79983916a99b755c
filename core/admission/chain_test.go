// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/trace"
)

func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i:1"}}},
	}
}

// label is a well-behaved mutator.
func label(key, value string, log *[]string) admission.Mutator {
	return admissiontest.Mutating(key, func(_ context.Context, r *admission.Request) error {
		*log = append(*log, key)
		v, err := r.Object.Versioned()
		if err != nil {
			return err
		}
		p := v.(*corev1.Pod)
		if p.Labels[key] == value {
			return nil
		}
		p = p.DeepCopy()
		p.Labels[key] = value
		r.Object.SetVersioned(p)
		return nil
	})
}

func look(name string, log *[]string) admission.Mutator {
	return admissiontest.Mutating(name, func(context.Context, *admission.Request) error {
		*log = append(*log, name)
		return nil
	})
}

func chain(t *testing.T, plugins ...admission.Plugin) *admission.Chain {
	t.Helper()
	c, err := admission.NewChain(plugins...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestMutatorsAreAskedAgainOnceAfterALaterChange(t *testing.T) {
	var log []string
	for _, c := range []struct {
		name    string
		plugins []admission.Plugin
		want    []string
	}{
		{"nobody changes anything", []admission.Plugin{look("a", &log), look("b", &log)}, []string{"a", "b"}},
		{"the first changes", []admission.Plugin{label("a", "1", &log), look("b", &log)}, []string{"a", "b"}},
		{"the second changes", []admission.Plugin{look("a", &log), label("b", "1", &log)}, []string{"a", "b", "a"}},
		{"two who never agree are asked twice, not for ever", []admission.Plugin{
			admissiontest.Mutating("x", replaceAlways(&log, "x")), admissiontest.Mutating("y", replaceAlways(&log, "y")),
		}, []string{"x", "y", "x", "y"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			log = nil
			r := admissiontest.Creating("pods", pod())
			if err := chain(t, c.plugins...).Mutate(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(log, c.want) {
				t.Errorf("asked %q, want %q", log, c.want)
			}
		})
	}
}

// several stands for webhooks, one of which wants to see what a later one did.
type several struct {
	admission.Mutator
	again bool
}

func (s *several) Again(*admission.Request) bool { return s.again }

func TestWhoStandsForSeveralMayAskForASecondRound(t *testing.T) {
	for _, again := range []bool{false, true} {
		var log []string
		p := &several{label("hooks", "1", &log), again}
		if err := chain(t, p).Mutate(t.Context(), admissiontest.Creating("pods", pod())); err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{false: 1, true: 2}[again]; len(log) != want {
			t.Errorf("asked %d times, want %d", len(log), want)
		}
	}
}

func TestAMemoIsMadeOnceForARequest(t *testing.T) {
	type key struct{}
	r := admissiontest.Creating("pods", pod())
	made := 0
	for range 3 {
		if got := r.Memo(key{}, func() any { made++; return made }); got != 1 {
			t.Errorf("memo %v", got)
		}
	}
	if r.AnnotateBodies("a/b", "c"); r.BodyAnnotations()["a/b"] != "c" || r.Annotations()["a/b"] != "" {
		t.Error("an annotation that quotes bodies is among the others")
	}
}

func TestTheOrderIsTold(t *testing.T) {
	var log []string
	no := admissiontest.Validating("judge", func(context.Context, *admission.Request) error { return nil })
	mutators, validators := chain(t, look("first", &log), no, look("second", &log)).Order()
	if !slices.Equal(mutators, []string{"first", "second"}) || !slices.Equal(validators, []string{"judge"}) {
		t.Errorf("%q, %q", mutators, validators)
	}
}

func replaceAlways(log *[]string, name string) func(context.Context, *admission.Request) error {
	return func(_ context.Context, r *admission.Request) error {
		*log = append(*log, name)
		p := pod()
		p.Labels["by"] = name
		r.Object.SetVersioned(p)
		return nil
	}
}

func TestRefusalsAreWordedLikeUpstreams(t *testing.T) {
	no := admissiontest.Validating("no-latest", func(context.Context, *admission.Request) error {
		return errors.New("image uses the tag latest")
	})
	err := chain(t, no).Validate(t.Context(), admissiontest.Creating("pods", pod()))
	if want := `pods "web" is forbidden: admission plugin "no-latest" denied the request: image uses the tag latest`; err == nil || err.Error() != want || !apierrors.IsForbidden(err) {
		t.Errorf("error %v, want %s", err, want)
	}
	generated := pod()
	generated.Name, generated.GenerateName = "", "web-"
	if err := chain(t, no).Validate(t.Context(), admissiontest.Creating("pods", generated)); !strings.HasPrefix(err.Error(),
		`pods "web-" is forbidden`) {
		t.Error(err)
	}
	own := apierrors.NewBadRequest("my words")
	mine := admissiontest.Validating("mine", func(context.Context, *admission.Request) error { return own })
	if err := chain(t, mine).Validate(t.Context(), admissiontest.Creating("pods", pod())); !errors.Is(err, own) {
		t.Errorf("a status error became %v", err)
	}
}

func TestAValidatorCannotChangeTheObject(t *testing.T) {
	sneaky := admissiontest.Validating("sneaky", func(_ context.Context, r *admission.Request) error {
		r.Object.SetVersioned(pod())
		return nil
	})
	if err := chain(t, sneaky).Validate(t.Context(), admissiontest.Creating("pods", pod())); !apierrors.IsInternalError(err) {
		t.Errorf("error %v", err)
	}
}

func TestAChainRefusesPluginsThatCannotBeToldApart(t *testing.T) {
	var log []string
	if _, err := admission.NewChain(look("a", &log), look("a", &log)); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("error %v", err)
	}
	if _, err := admission.NewChain(look("", &log)); err == nil {
		t.Error("a nameless plugin was taken")
	}
}

func TestEveryPluginsTurnIsASpanWithItsPatch(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	ctx, root := provider.Tracer("t").Start(t.Context(), trace.Request)
	var log []string
	deny := admissiontest.Validating("deny", func(context.Context, *admission.Request) error { return errors.New("no") })
	c := chain(t, label("team", "a/b", &log), deny)
	r := admissiontest.Creating("pods", pod())
	if err := c.Mutate(ctx, r); err != nil {
		t.Fatal(err)
	}
	_ = c.Validate(ctx, r)
	root.End()
	var got []string
	for _, s := range recorder.Ended() {
		attrs := map[string]string{}
		for _, a := range s.Attributes() {
			attrs[string(a.Key)] = a.Value.AsString()
		}
		got = append(got, s.Name()+" "+attrs[string(trace.PluginKey)]+" "+attrs[string(trace.DecisionKey)]+" "+attrs[string(trace.PatchKey)])
	}
	want := []string{`admission.mutate team patch [{"op":"add","path":"/metadata/labels/team","value":"a/b"}]`, "admission.validate deny deny ", "request   "}
	if !slices.Equal(got, want) {
		t.Errorf("spans %q\nwant  %q", got, want)
	}
}

func TestDeleteHasNoObject(t *testing.T) {
	var log []string
	if err := chain(t, look("a", &log)).Mutate(t.Context(), admissiontest.Deleting("pods", pod())); err != nil || len(log) != 1 {
		t.Errorf("error %v, asked %q", err, log)
	}
}

func TestSuite(t *testing.T) {
	var log []string
	_ = log
	admissiontest.Run(t, admissiontest.Validating("no-latest", func(_ context.Context, r *admission.Request) error {
		if r.Operation == admission.Create && strings.HasPrefix(r.Name, "bad") {
			return errors.New("bad name")
		}
		return nil
	}),
		admissiontest.Case{Name: "good", Request: func() *admission.Request { return admissiontest.Creating("pods", pod()) }},
		admissiontest.Case{Name: "bad", Denied: "bad name", Request: func() *admission.Request {
			p := pod()
			p.Name = "bad"
			return admissiontest.Creating("pods", p)
		}},
	)
}

// Whatever the two trees are, applying the patch to one gives the other.
func FuzzPatch(f *testing.F) {
	f.Add(`{"a":[1,2,3],"b":{"c/d~":null}}`, `{"a":[0,1,2,3],"b":{"c/d~":"x"}}`)
	f.Add(`{"a":[1,2,3]}`, `{"a":[3]}`)
	f.Add(`{"a":1}`, `{"a":{"b":[]}}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		var from, to map[string]any
		if json.Unmarshal([]byte(a), &from) != nil || json.Unmarshal([]byte(b), &to) != nil || from == nil || to == nil {
			return
		}
		text := admission.PatchText(from, to)
		p, err := jsonpatch.DecodePatch([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		doc, _ := json.Marshal(from)
		if len(p) > 0 {
			if doc, err = p.Apply(doc); err != nil {
				t.Fatalf("%s on %s: %v", text, a, err)
			}
		}
		want, _ := json.Marshal(to)
		if !jsonpatch.Equal(doc, want) {
			t.Errorf("%s made %s, want %s", text, doc, want)
		}
	})
}

type charging struct{ admission.Validator }

func (charging) Charges() {}

// What somebody else's hand changed is validated as that somebody too, but charged once.
func TestValidatorsAreAskedAsTheAuthorsOfChanges(t *testing.T) {
	var asked []string
	note := func(name string) admission.Validator {
		return admissiontest.Validating(name, func(_ context.Context, r *admission.Request) error {
			asked = append(asked, name+" "+r.User.GetName())
			if name == "second" && r.User.GetName() == "zoe" {
				return errors.New("not zoe")
			}
			return nil
		})
	}
	c := chain(t, note("first"), note("second"), charging{note("quota")})
	r := admissiontest.Creating("pods", pod())
	r.ChangedFor(&user.DefaultInfo{Name: "tina"})
	r.ChangedFor(&user.DefaultInfo{Name: "tina"})
	r.ChangedFor(admissiontest.Someone()) // who asks
	if err := c.Validate(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if want := []string{"first jane", "first tina", "second jane", "second tina", "quota jane"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	r.ChangedFor(&user.DefaultInfo{Name: "zoe"})
	err := c.Validate(t.Context(), r)
	if want := `on behalf of its writer, "zoe", who may not do so`; err == nil || !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "not zoe") {
		t.Errorf("%v, want %q", err, want)
	}
}
