// SPDX-License-Identifier: Apache-2.0

package body_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/api/decodedsize"
	"github.com/wasmplane/wasmplane/core/apiserver/body"
	"github.com/wasmplane/wasmplane/core/object"
)

func TestDepthIsBounded(t *testing.T) {
	deep := append(bytes.Repeat([]byte(`{"a":[`), 300), bytes.Repeat([]byte(`]}`), 300)...)
	if err := body.CheckDepth(deep, object.JSON); err == nil {
		t.Error("600 levels passed")
	}
	quoted, err := json.Marshal(map[string]string{"text": string(bytes.Repeat([]byte(`[\"`), 2000))})
	if err != nil {
		t.Fatal(err)
	}
	if err := body.CheckDepth(quoted, object.JSON); err != nil {
		t.Errorf("brackets in a text were counted: %v", err)
	}
}

// What is unknown below a name is told with the name, up to a hundred times.
func TestNamesAreBounded(t *testing.T) {
	for n, refused := range map[int]bool{16 << 10: false, 16<<10 + 1: true} {
		name := string(bytes.Repeat([]byte("n"), n))
		if err := body.CheckDepth([]byte(`{"a":[{"`+name+`":{"b":1}}]}`), object.JSON); apierrors.IsBadRequest(err) != refused {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if err := body.CheckDepth([]byte(`{"a":"`+string(bytes.Repeat([]byte("n"), 1<<20))+`"}`), object.JSON); err != nil {
		t.Errorf("a long text: %v", err)
	}
}

func TestProtobufDepthIsBounded(t *testing.T) {
	nested := func(levels int) (data []byte) {
		for range levels {
			data = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), data)
		}
		return data
	}
	if err := body.CheckProtobufDepth(nested(900)); err != nil {
		t.Errorf("900 levels: %v", err)
	}
	if err := body.CheckProtobufDepth(nested(1100)); !apierrors.IsBadRequest(err) {
		t.Errorf("1100 levels: %v", err)
	}
}

// request has a body of n bytes, whose length it says or does not say.
func request(t *testing.T, n int, said bool) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(make([]byte, n)))
	if err != nil {
		t.Fatal(err)
	}
	if !said {
		req.ContentLength = -1
	}
	return req
}

func TestSizeIsBounded(t *testing.T) {
	for _, said := range []bool{true, false} {
		data, err := body.Read(request(t, body.Max, said))
		if err != nil || len(data) != body.Max {
			t.Errorf("the most, length known %v: %d bytes, %v", said, len(data), err)
		}
		if _, err := body.Read(request(t, body.Max+1, said)); !apierrors.IsRequestEntityTooLargeError(err) {
			t.Errorf("one more, length known %v: %v", said, err)
		}
	}
	cut := request(t, 10, true)
	cut.ContentLength = 11
	if _, err := body.Read(cut); !apierrors.IsBadRequest(err) {
		t.Errorf("a body that ends too soon: %v", err)
	}
}

func TestABodyIsFetchedOnce(t *testing.T) {
	req := request(t, 1000, false)
	if err := body.Fetch(req); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it stays where it is
		if data, err := body.Read(req); err != nil || len(data) != 1000 {
			t.Errorf("%d bytes, %v", len(data), err)
		}
	}
	large := request(t, body.Max+5000, false)
	if err := body.Fetch(large); err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(large.Body); err != nil || len(data) != body.Max+5000 {
		t.Errorf("who passes a large body on gets %d bytes, %v", len(data), err)
	}
	broken := request(t, 1, false)
	broken.Body = io.NopCloser(iotest.ErrReader(errors.New("reset")))
	if err := body.Fetch(broken); !apierrors.IsBadRequest(err) {
		t.Errorf("a body that breaks off: %v", err)
	}
}

// need opens an account and asks it for n bytes.
func need(b *body.Budget, who user.Info, n int64) (*body.Account, error) {
	a := b.Open(who)
	return a, a.Need(decodedsize.Decoded, n)
}

func TestRequestsShareABudget(t *testing.T) {
	var b body.Budget
	ann, administrator := &user.DefaultInfo{Name: "ann"}, &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}
	anns, err := need(&b, ann, body.PerUser)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := need(&b, ann, 1); !apierrors.IsTooManyRequests(err) {
		t.Errorf("more than a user's share: %v", err)
	}
	if _, err := need(&b, &user.DefaultInfo{Name: "system:serviceaccount:team:one"}, 100<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := need(&b, &user.DefaultInfo{Name: "system:serviceaccount:team:two"}, 29<<20); !apierrors.IsTooManyRequests(err) {
		t.Errorf("more than the share of a namespace's accounts: %v", err)
	}
	if _, err := need(&b, administrator, 2*body.Total); err != nil {
		t.Errorf("an administrator: %v", err)
	}
	anns.Close()
	if _, err := need(&b, ann, 1); !apierrors.IsTooManyRequests(err) {
		t.Errorf("an administrator's bytes count for others: %v", err)
	}
}

// However many users take all that they can get and give nothing back, others have what ordinary requests need.
func TestWhoComesNextFindsRoom(t *testing.T) {
	var b body.Budget
	takes := func(name string, step int64) (all int64) {
		for {
			if _, err := need(&b, &user.DefaultInfo{Name: name}, step); err != nil {
				return all
			}
			all += step
		}
	}
	for i := range 40 {
		if has := takes(fmt.Sprint("user", i), 1<<20); has < body.Little || has > body.PerUser {
			t.Errorf("user %d has %d bytes", i, has)
		}
	}
	if has := takes("late", 100<<10); has < body.Little-100<<10 {
		t.Errorf("who comes next has %d bytes", has)
	}
}

// An account counts the most that each part needed, and gives all of it back.
func TestAnAccountGivesBackWhatItHas(t *testing.T) {
	var b body.Budget
	ann := &user.DefaultInfo{Name: "ann"}
	b.Open(ann).Close() // it has nothing
	first := b.Open(ann)
	for _, n := range []int64{10 << 20, 60 << 20, 20 << 20, 60 << 20} { // a write that is tried again
		if err := first.Need(decodedsize.Decoded, n); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Need(decodedsize.Result, body.Alone-60<<20); err != nil {
		t.Errorf("another part, up to the bound: %v", err)
	}
	if err := first.Need(decodedsize.Current, 1); !apierrors.IsTooManyRequests(err) {
		t.Errorf("more than the bound: %v", err)
	}
	first.Close()
	first.Close()
	if err := first.Need(decodedsize.Decoded, 1); !apierrors.IsTimeout(err) {
		t.Errorf("a request that is over: %v", err)
	}
	if _, err := need(&b, ann, body.PerUser); err != nil {
		t.Errorf("what was given back: %v", err)
	}
}

// TestTheLargestRequestIsServed: a patch of the largest object to one that is as large, of a user who has nothing else under way.
func TestTheLargestRequestIsServed(t *testing.T) {
	var b body.Budget
	a := b.Open(&user.DefaultInfo{Name: "ann"})
	for p, n := range map[decodedsize.Part]int64{
		decodedsize.Sent: body.Max, decodedsize.Decoded: 25 << 20, decodedsize.Current: decodedsize.Max, decodedsize.Result: decodedsize.Max,
	} {
		if err := a.Need(p, n); err != nil {
			t.Fatal(err)
		}
	}
	ctx := decodedsize.With(t.Context(), a)
	if err := decodedsize.NeedDecoded(ctx, decodedsize.Result, decodedsize.Max, object.JSON); err != nil {
		t.Error(err)
	}
	a.Close()
	// An apply of a custom resource of 1.5 MiB, which is all that the store takes, of small maps, to one that is as large.
	dense := []byte(strings.Repeat(`{"name":"a","value":"b"},`, 1536<<10/25))
	size := decodedsize.TreeSize(dense, object.JSON)
	for _, beside := range []bool{false, true} {
		if beside {
			if _, err := need(&b, &user.DefaultInfo{Name: "ann"}, 1); err != nil {
				t.Fatal(err)
			}
		}
		a := b.Open(&user.DefaultInfo{Name: "ann"})
		ctx := decodedsize.With(t.Context(), a)
		err := a.Need(decodedsize.Sent, int64(len(dense)))
		for _, p := range []decodedsize.Part{decodedsize.Decoded, decodedsize.Current, decodedsize.Result} {
			err = errors.Join(err, decodedsize.NeedDecoded(ctx, p, size, object.JSON))
		}
		if (err != nil) != beside {
			t.Errorf("beside another request %t: %v", beside, err)
		}
		a.Close()
	}
}

func TestMediaTypesOfBodies(t *testing.T) {
	for header, want := range map[string]string{
		"": object.JSON, "application/json; charset=utf-8": object.JSON, object.YAML: object.YAML, object.Protobuf: object.Protobuf,
	} {
		req := request(t, 1, true)
		req.Header.Set("Content-Type", header)
		if got, err := body.Type(req); err != nil || got != want {
			t.Errorf("%q: %q, %v", header, got, err)
		}
	}
	req := request(t, 1, true)
	req.Header.Set("Content-Type", "text/html")
	if _, err := body.Type(req); apierrors.ReasonForError(err) != "UnsupportedMediaType" {
		t.Errorf("text/html: %v", err)
	}
}
