// SPDX-License-Identifier: Apache-2.0

// Package podfile reads the manifest of one pod as an API server would take it: the same
// decoder, defaults and validation, without a server.
package podfile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sync"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/strictyaml"
)

// contract of the API is made when the first manifest is read: most nodes read none.
var contract = sync.OnceValues(api.New)

// Pod makes a pod of a file's contents, YAML or JSON, with the API's defaults. An error
// begins with the file, and the line if it is known.
func Pod(ctx context.Context, file string, data []byte) (*corev1.Pod, error) {
	node, err := document(file, data)
	if err != nil {
		return nil, err
	}
	wrong := func(path, format string, args ...any) error {
		return &strictyaml.FieldError{File: file, Line: config.NearestLine(node, path), Path: path, Problem: fmt.Sprintf(format, args...)}
	}
	var tree map[string]any
	if err := node.Decode(&tree); err != nil {
		return nil, wrong("", "expected a Pod: %v", err)
	}
	if tree["apiVersion"] != "v1" || tree["kind"] != "Pod" {
		return nil, wrong("kind", "expected apiVersion v1 and kind Pod, found %v and %v", tree["apiVersion"], tree["kind"])
	}
	words, err := json.Marshal(tree)
	if err != nil {
		return nil, wrong("", "%v", err)
	}
	c, err := contract()
	if err != nil {
		return nil, err
	}
	row, ok := c.ByKind(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind())
	if !ok {
		return nil, errors.New("the contract of the API has no pods")
	}
	o, strict, err := c.DecodeStrict(row, "v1", words, object.JSON)
	if err == nil && len(strict) > 0 {
		err = strict[0]
	}
	if err != nil {
		return nil, wrong(pathIn(err), "%v", err)
	}
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil, wrong("kind", "expected a Pod")
	}
	if p.Name == "" {
		return nil, wrong("metadata.name", "expected a name: the node's is added to it")
	}
	row.Codec("v1").Default(p)
	if path, problem := judge(ctx, row, p); problem != "" {
		return nil, wrong(path, "%s", problem)
	}
	return p, nil
}

// document is the only one of a file.
func document(file string, data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var first, more yaml.Node
	err := dec.Decode(&first)
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s:1: expected a Pod, found nothing", file)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := dec.Decode(&more); err == nil && len(more.Content) > 0 {
		return nil, fmt.Errorf("%s:%d: expected one Pod, found another document: give it a file of its own", file, more.Content[0].Line)
	}
	if len(first.Content) == 0 {
		return nil, fmt.Errorf("%s:1: expected a Pod, found nothing", file)
	}
	return first.Content[0], nil
}

// judge validates a pod as a server does that is asked to create it.
func judge(ctx context.Context, row *api.Resource, p *corev1.Pod) (path, problem string) {
	tried := p.DeepCopy()
	tried.UID = "static"
	if tried.Namespace == "" {
		tried.Namespace = metav1.NamespaceDefault
	}
	internal, err := row.Codec("v1").Internal(tried)
	if err != nil {
		return "", err.Error()
	}
	ctx = api.StrategyContext(ctx, api.StrategyInfo{Resource: row, Version: "v1", Namespace: tried.Namespace})
	row.Strategy.PrepareForCreate(ctx, internal)
	for _, e := range row.Strategy.Validate(ctx, internal) {
		return e.Field, e.ErrorBody()
	}
	return "", ""
}

var quotedField = regexp.MustCompile(`field "([^"]+)"`)

// pathIn is the field that an error of the decoder names; "" where it names none.
func pathIn(err error) string {
	if m := quotedField.FindStringSubmatch(err.Error()); m != nil {
		return m[1]
	}
	return ""
}
