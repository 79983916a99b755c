// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// fromFile is the environment of a container that asks for the variable K of the file of a volume.
func fromFile(t *testing.T, optional bool, file func() ([]byte, error)) (map[string]string, error) {
	t.Helper()
	c := &corev1.Container{Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{
		VolumeName: "data", Path: "config.env", Key: "K", Optional: &optional,
	}}}}}
	list, err := spec.Env(t.Context(), spec.EnvRequest{
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}, Container: c,
		File: func(volume, path string) ([]byte, error) {
			if volume != "data" || path != "config.env" {
				t.Errorf("read %s of %s", path, volume)
			}
			return file()
		},
	})
	return spec.EnvMap(list), err
}

func TestVariablesOfAFile(t *testing.T) {
	for text, want := range map[string]string{
		"K='v'":                                  "v",
		"K='v'\r\n":                              "v",
		"# K='no'\n\nOTHER='x'\n \tK='v' # said": "v",
		"K='first'\nK='second'\n":                "first",
		"OTHER='K=1\nK='\nK='v'\n":               "v",
		"K='two\nlines'":                         "two\nlines",
		"K='\"$HOME\" \\n'":                      `"$HOME" \n`,
		"OTHER= unquoted\nK='v'":                 "v",
		"K='v'\nwhat comes after is not read":    "v",
	} {
		env, err := fromFile(t, false, func() ([]byte, error) { return []byte(text), nil })
		if err != nil || env["A"] != want {
			t.Errorf("%q: %q, %v, expected %q", text, env["A"], err, want)
		}
	}
}

func TestFilesThatAreNoneOfVariables(t *testing.T) {
	for text, want := range map[string]string{
		"":                    `key "K" not found in file "config.env"`,
		"KEY='v'":             `key "K" not found`,
		"K=''":                `key "K" not found`,
		"K= 'v'":              `key "K" not found`,
		"\nnothing":           "line 2: expected KEY='value'",
		"K ='v'":              "line 1: expected KEY='value'",
		"='v'":                "line 1: expected KEY='value'",
		"export K='v'":        "line 1: expected KEY='value'",
		"OTHER=v\nK='v'":      "line 1: expected the value of OTHER in single quotes",
		`K="v"`:               "line 1: expected the value of K in single quotes",
		"OTHER='a\n'b\nK='v'": "line 2: expected nothing after the closing quote",
		"\nK='v\n\n":          "line 2: the quote is not closed",
	} {
		env, err := fromFile(t, false, func() ([]byte, error) { return []byte(text), nil })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, expected %s", text, env, err, want)
		}
		env, err = fromFile(t, true, func() ([]byte, error) { return []byte(text), nil })
		if wrong := strings.HasPrefix(want, "line"); wrong != (err != nil) || len(env) > 0 {
			t.Errorf("%q, optional: %v, %v", text, env, err)
		}
	}
}

func TestAFileThatCannotBeRead(t *testing.T) {
	missing := fmt.Errorf("open config.env: %w", fs.ErrNotExist)
	if env, err := fromFile(t, true, func() ([]byte, error) { return nil, missing }); err != nil || len(env) > 0 {
		t.Errorf("an optional file that is missing: %v, %v", env, err)
	}
	for _, why := range []error{missing, errors.New("it is no regular file")} {
		if _, err := fromFile(t, false, func() ([]byte, error) { return nil, why }); !errors.Is(err, why) {
			t.Errorf("%v, expected %v", err, why)
		}
	}
	if _, err := fromFile(t, true, func() ([]byte, error) { return nil, errors.New("it is no regular file") }); err == nil {
		t.Error("an optional file that is there and cannot be read was left out silently")
	}
}
