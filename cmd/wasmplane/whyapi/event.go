// SPDX-License-Identifier: Apache-2.0

package whyapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/why"
)

const (
	eventReason   = "Why"
	eventReporter = "wasmplane-why"
	eventMost     = 1024 // bytes of a message, as the API has it
	nameMost      = 253 - 17
)

// amounts vary while the cause stays.
var amounts = regexp.MustCompile(`[0-9]+`)

// record has the cause stand among the object's events, where `kubectl describe` shows it: once for
// each cause, and only if whoever asks may write events there.
//
// Whoever reads events reads less than whoever asks. So an event is written only where the object is: what is
// in no namespace has its events in "default", where nobody expects names of others' objects. Of nodes there have always
// been some.
func record(ctx context.Context, set *client.Set, o *object, a *why.Answer) error {
	if o.namespace == "" && o.kind != "node" {
		return nil
	}
	about, err := set.Metadata.Resource(o.gvr).Namespace(o.namespace).Get(ctx, o.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read which object it is: %w", err)
	}
	now := metav1.Now()
	sum := sha256.Sum256([]byte(string(about.UID) + "\x00" + amounts.ReplaceAllString(a.Public(), "#")))
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: eventsOf(o), Name: about.Name[:min(len(about.Name), nameMost)] + "." + hex.EncodeToString(sum[:8]),
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: o.gvk.GroupVersion().String(), Kind: o.gvk.Kind, Namespace: o.namespace, Name: about.Name, UID: about.UID,
		},
		Type: corev1.EventTypeWarning, Reason: eventReason, Message: cut(a.Public()), Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: eventReporter}, ReportingController: eventReporter,
	}
	_, err = set.Kube.CoreV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func cut(text string) string {
	if len(text) > eventMost {
		return strings.ToValidUTF8(text[:eventMost-3], "") + "..."
	}
	return text
}
