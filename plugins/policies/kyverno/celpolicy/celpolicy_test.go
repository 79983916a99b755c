// SPDX-License-Identifier: Apache-2.0

package celpolicy_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/celpolicy"
)

// evaluate compiles and evaluates one validation about an object.
func evaluate(ctx context.Context, t *testing.T, expression string, variables ...admissionregistrationv1.Variable) (string, error) {
	t.Helper()
	c, err := celpolicy.Plain()
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Policy(celpolicy.Spec{
		Variables: variables, Validations: []admissionregistrationv1.Validation{{
			Expression:        expression,
			MessageExpression: "'it is ' + object.name",
		}},
	})
	if err != nil {
		return "", err
	}
	return p.Evaluate(ctx, map[string]any{
		"object": map[string]any{"name": "x", "list": []any{int64(1), int64(2)}}, "oldObject": nil, "request": map[string]any{}, "namespaceObject": nil,
	}).Validate(ctx)
}

// selfSigned is a certificate in PEM, as a literal of the language.
func selfSigned(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a"}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), "\n", "\\n")
}

func TestTheFunctionsOfKyverno(t *testing.T) {
	certificate := selfSigned(t)
	const digest = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	for _, expression := range []string{
		`image("nginx").registry() == "index.docker.io" && image("nginx").repository() == "library/nginx" && image("nginx").tag() == "latest"`,
		`parseImageReference("r.example.com:5000/a/b:1").registry() == "r.example.com:5000"`,
		`image("r.example.com:5000/a@` + digest + `").tag() == "" && image("r.example.com:5000/a@` + digest + `").containsDigest()`,
		`image("r.example.com/a:1@` + digest + `").identifier() == "1@` + digest + `" && image("r.example.com/a:1@` + digest + `").tag() == "1"`,
		`image("a:1").identifierWithSeparator() == ":1" && image("a@` + digest + `").identifierWithSeparator() == "@` + digest + `"`,
		`!image("a:1").containsDigest() && image("a:1").digest() == "" && image("a") == image("a:latest")`,
		`isImage("a/b:1") && !isImage("A B")`,
		`parseServiceAccount("system:serviceaccount:red:robot").Namespace == "red" && parseServiceAccount("system:serviceaccount:red:robot").Name == "robot"`,
		`parseServiceAccount("jane").Name == ""`,
		`json.unmarshal('{"a":[1]}').a[0] == 1.0 && json.marshal({"a": "b"}) == '{"a":"b"}'`,
		`yaml.parse("a: {b: c}").a.b == "c"`,
		`json.marshal(object.list) == "[1,2]" && json.marshal({"t": dyn(timestamp("2025-01-02T03:00:00Z")), "n": dyn(null), "o": dyn(object.?none)}) == '{"n":null,"o":null,"t":"2025-01-02T03:00:00Z"}'`,
		`sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"`,
		`md5("") == "d41d8cd98f00b204e9800998ecf8427e" && sha1("") == "da39a3ee5e6b4b0d3255bfef95601890afd80709"`,
		`object.name.orValue("y") == "x" && object.?other.orValue("y") == "y"`,
		`variables.twice[1] == 4`,
		`time.now() - duration("1h") < time.now() && time.toCron(timestamp("2025-01-02T15:30:00Z")) == "30 15 2 1 4"`,
		`time.truncate(timestamp("2025-01-02T03:45:27Z"), duration("1h")) == timestamp("2025-01-02T03:00:00Z")`,
		`math.round(10.125, 2) == 10.13 && math.round(12345.6789, -2) == 12300.0`,
		`random().matches("^[0-9a-z]{8}$") && random("[A-Z]{2}-(a|b)+x?[^c]").matches("^[A-Z]{2}-(a|b)+x?[^c]$")`,
		`listObjToMap([{"id": "x"}, {"id": "y"}], [{"v": 1}, {"v": 2}], "id", "v") == {"x": 1, "y": 2}`,
		`gzip.decompress(gzip.compress("text")) == "text" && hash.md5("") == md5("")`,
		`x509.decode("` + certificate + `").IsCA && x509.decode("` + certificate + `").Subject.CommonName == "a"`,
		`timestamp(x509.decode("` + certificate + `").NotAfter) > time.now()`,
	} {
		failed, err := evaluate(t.Context(), t, expression,
			admissionregistrationv1.Variable{Name: "twice", Expression: "object.list.map(n, n * 2)"})
		if failed != "" || err != nil {
			t.Errorf("%s: %q, %v", expression, failed, err)
		}
	}
}

func TestWhatIsWrongWithAnExpressionIsSaid(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx              context.Context
		expression, want string
	}{
		{t.Context(), `object.name == "y"`, "it is x"},
		{t.Context(), `image("A B").tag() == ""`, "resulted in error: could not parse reference"},
		{t.Context(), `json.unmarshal("{").a`, "resulted in error"},
		{t.Context(), `object.none`, "no such key: none"},
		{t.Context(), `object.name`, "expected a bool, found a string"},
		{t.Context(), `"text"`, "must evaluate to bool"},
		{t.Context(), `http.Get("https://a.example.com").b`, "undeclared reference to 'http'"},
		{t.Context(), `verifyImageSignatures("a", [])  > 0`, "undeclared reference to 'verifyImageSignatures'"},
		{t.Context(), `globalContext.Get("a", "b") == 1`, "undeclared reference to 'globalContext'"},
		{t.Context(), "'" + strings.Repeat("x", 70<<10) + "' == ''", "more than 65536 bytes"},
		{t.Context(), strings.Repeat("object.list.all(a, ", 30) + "true" + strings.Repeat(")", 30), "cost"},
		{t.Context(), `random("(a{900}){900}") == ""`, "invalid repeat count"},
		{t.Context(), `random("(((a{90}){90}){90})") == ""`, "random: "},
		{t.Context(), `x509.decode("no").IsCA`, "expected a certificate"},
		{t.Context(), `listObjToMap([{"id": 1}], [{"v": 1}], "id", "v") == {}`, "expected a string"},
		{t.Context(), `listObjToMap([], [{"v": 1}], "id", "v") == {}`, "expected as many"},
		{t.Context(), `gzip.decompress(b"no") == ""`, "gzip.decompress"},
		{over, `object.list.all(a, object.list.all(b, a < b))`, "not evaluated in time"},
	} {
		failed, err := evaluate(c.ctx, t, c.expression)
		if err != nil {
			failed = err.Error()
		}
		if !strings.Contains(failed, c.want) {
			t.Errorf("%.60s: %.300q, expected %q", c.expression, failed, c.want)
		}
	}
}
