package api

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestNew(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	r, ok := c.Resource(schema.GroupResource{Resource: "pods"})
	if !ok {
		t.Fatal("no pods")
	}
	o, strict, err := c.DecodeStrict(r, "v1", []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"bogus":1,"containers":[{"name":"a","image":"b"}]}}`), "application/json")
	if err != nil {
		t.Fatal(err)
	}
	t.Log(strict)
	cd := r.Codec("v1")
	cd.Default(o)
	in, err := cd.Internal(o)
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.EncodeStorage(r, in)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%q", b)
	d, err := c.DecodeStorage(r, b)
	if err != nil {
		t.Fatal(err)
	}
	j, err := d.Encoded("application/json")
	t.Logf("%s %v", j, err)
	for _, r := range c.Resources() {
		if r.Virtual {
			continue
		}
		for _, v := range r.Versions {
			if _, err := c.FieldManager(r, v, ""); err != nil {
				t.Error(err)
			}
		}
	}
}
