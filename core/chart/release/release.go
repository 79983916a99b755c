// SPDX-License-Identifier: Apache-2.0

// Package release is what Helm remembers of a release, in the form in which Helm keeps it: one
// Secret for each revision, of type helm.sh/release.v1, whose data is a JSON document,
// compressed, in base64. Stock helm lists, compares and rolls back what is written here,
// and what it writes is read here.
//
// Whoever may write Secrets may write anything into one, so that a record is decoded within
// bounds, and the chart in it, which nobody here needs, is kept as it is.
package release

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Status of a revision.
type Status string

// The statuses that Helm gives.
const (
	Deployed        Status = "deployed"
	Superseded      Status = "superseded"
	Failed          Status = "failed"
	Uninstalling    Status = "uninstalling"
	Uninstalled     Status = "uninstalled"
	PendingInstall  Status = "pending-install"
	PendingUpgrade  Status = "pending-upgrade"
	PendingRollback Status = "pending-rollback"
)

// Pending says whether somebody is at work on the revision.
func (s Status) Pending() bool {
	return s == PendingInstall || s == PendingUpgrade || s == PendingRollback
}

// Record is one revision of a release.
type Record struct {
	Name      string          `json:"name,omitempty"`
	Namespace string          `json:"namespace,omitempty"`
	Version   int             `json:"version,omitempty"` // the revision, from 1 on
	Info      Info            `json:"info"`
	Chart     json.RawMessage `json:"chart,omitempty"`
	Config    json.RawMessage `json:"config,omitempty"` // the values that were given, beside the chart's own
	Manifest  string          `json:"manifest,omitempty"`
	Hooks     []*Hook         `json:"hooks,omitempty"`
	// ApplyMethod is ssa for server-side apply.
	ApplyMethod string `json:"apply_method,omitempty"`

	// Marks are annotations of the Secret, which Helm knows nothing of and may drop.
	Marks map[string]string `json:"-"`
	// resourceVersion of the Secret that it was read from.
	resourceVersion string
	labels          map[string]string
}

// Info says what became of a revision.
type Info struct {
	FirstDeployed    Time   `json:"first_deployed,omitzero"`
	LastDeployed     Time   `json:"last_deployed,omitzero"`
	Deleted          Time   `json:"deleted,omitzero"`
	Description      string `json:"description,omitempty"`
	Status           Status `json:"status,omitempty"`
	RollbackRevision int    `json:"rollback_revision,omitempty"`
	Notes            string `json:"notes,omitempty"`
}

// Time is a time that older releases of Helm write as "" where there is none.
type Time struct{ time.Time }

// UnmarshalJSON implements json.Unmarshaler.
func (t *Time) UnmarshalJSON(b []byte) error {
	if string(b) == `""` {
		return nil
	}
	return t.Time.UnmarshalJSON(b)
}

// Hook is an object that is made at a point in the life of the release.
type Hook struct {
	Name              string   `json:"name,omitempty"`
	Kind              string   `json:"kind,omitempty"`
	Path              string   `json:"path,omitempty"`
	Manifest          string   `json:"manifest,omitempty"`
	Events            []string `json:"events,omitempty"`
	LastRun           Run      `json:"last_run"`
	Weight            int      `json:"weight,omitempty"`
	DeletePolicies    []string `json:"delete_policies,omitempty"`
	OutputLogPolicies []string `json:"output_log_policies,omitempty"`
}

// Run is the last run of a hook.
type Run struct {
	StartedAt   Time  `json:"started_at,omitzero"`
	CompletedAt Time  `json:"completed_at,omitzero"`
	Phase       Phase `json:"phase"`
}

// Phase of a hook's run.
type Phase string

// The phases; "" is one that has not run.
const (
	HookRunning   Phase = "Running"
	HookSucceeded Phase = "Succeeded"
	HookFailed    Phase = "Failed"
)

// Policies by which hooks are deleted.
const (
	BeforeCreation = "before-hook-creation"
	AfterSuccess   = "hook-succeeded"
	AfterFailure   = "hook-failed"
)

// Deletes says whether the hook is deleted by a policy. One without any is deleted before it is made again.
func (h *Hook) Deletes(policy string) bool {
	if len(h.DeletePolicies) == 0 {
		return policy == BeforeCreation
	}
	return slices.Contains(h.DeletePolicies, policy)
}

// On are the hooks of an event, in the order in which they run.
func (r *Record) On(event string) []*Hook {
	var out []*Hook
	for _, h := range r.Hooks {
		if slices.Contains(h.Events, event) {
			out = append(out, h)
		}
	}
	slices.SortStableFunc(out, func(a, b *Hook) int {
		if a.Weight != b.Weight {
			return a.Weight - b.Weight
		}
		return bytes.Compare([]byte(a.Name), []byte(b.Name))
	})
	return out
}

// SecretType of a record.
const SecretType corev1.SecretType = "helm.sh/release.v1"

const member = "release"

// Limits of a record.
const (
	MaxStored   = 1 << 20  // bytes of the Secret's data, which the API server bounds too
	MaxUnpacked = 16 << 20 // bytes of JSON
)

// Key is the name of the Secret of a revision.
func Key(name string, version int) string {
	return fmt.Sprintf("sh.helm.release.v1.%s.v%d", name, version)
}

// Selector of the Secrets of a release.
func Selector(name string) string {
	return labels.Set{"owner": "helm", "name": name}.AsSelector().String()
}

// Secret is the record as it is stored.
func (r *Record) Secret(now time.Time) (*corev1.Secret, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the release: %w", err)
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	data := []byte(base64.StdEncoding.EncodeToString(packed.Bytes()))
	if len(data) > MaxStored || len(text) > MaxUnpacked {
		return nil, fmt.Errorf("the release takes %d bytes, packed with its chart, and the Secret that Helm keeps it in may have %d: "+
			"take files that nobody needs out of the chart (.helmignore)", len(data), MaxStored)
	}
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.Namespace, Name: Key(r.Name, r.Version), ResourceVersion: r.resourceVersion, Annotations: r.Marks,
			Labels: map[string]string{},
		},
		Type: SecretType, Data: map[string][]byte{member: data},
	}
	for k, v := range r.labels { // those that helm --labels has set
		s.Labels[k] = v
	}
	stamp := "createdAt"
	if r.resourceVersion != "" {
		stamp = "modifiedAt"
	}
	s.Labels["name"], s.Labels["owner"], s.Labels["status"] = r.Name, "helm", string(r.Info.Status)
	s.Labels["version"], s.Labels[stamp] = strconv.Itoa(r.Version), strconv.FormatInt(now.Unix(), 10)
	return s, nil
}

// Wrote takes over what the server made of Secret.
func (r *Record) Wrote(s *corev1.Secret) { r.resourceVersion, r.labels = s.ResourceVersion, s.Labels }

// Identity tells states of the record from each other.
func (r *Record) Identity() string {
	return r.Namespace + "/" + Key(r.Name, r.Version) + "@" + r.resourceVersion
}

// Read decodes a Secret.
func Read(s *corev1.Secret) (*Record, error) {
	r, err := decode(s.Data[member])
	if err != nil {
		return nil, fmt.Errorf("read the release in Secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	if s.Name != Key(r.Name, r.Version) {
		return nil, fmt.Errorf("the release in Secret %s/%s says that it is %s", s.Namespace, s.Name, Key(r.Name, r.Version))
	}
	r.Namespace, r.Marks, r.resourceVersion, r.labels = s.Namespace, s.Annotations, s.ResourceVersion, s.Labels
	return r, nil
}

func decode(data []byte) (*Record, error) {
	packed, err := base64.StdEncoding.DecodeString(string(data))
	if err != nil {
		return nil, fmt.Errorf("it is no base64: %w", err)
	}
	text := packed
	if bytes.HasPrefix(packed, []byte{0x1f, 0x8b, 0x08}) {
		zr, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil, fmt.Errorf("unpack it: %w", err)
		}
		if text, err = io.ReadAll(io.LimitReader(zr, MaxUnpacked+1)); err != nil {
			return nil, fmt.Errorf("unpack it: %w", err)
		}
		if len(text) > MaxUnpacked {
			return nil, fmt.Errorf("it has more than %d bytes", MaxUnpacked)
		}
	}
	r := &Record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("it is no release: %w", err)
	}
	if slices.Contains(r.Hooks, nil) {
		return nil, errors.New("it is no release: a hook is null")
	}
	return r, nil
}

// VersionOf is the revision that a Secret's labels name; 0 = none.
func VersionOf(s metav1.Object) int {
	n, err := strconv.Atoi(s.GetLabels()["version"])
	if err != nil || n < 1 {
		return 0
	}
	return n
}

// StatusOf is the status that a Secret's labels name.
func StatusOf(s metav1.Object) Status { return Status(s.GetLabels()["status"]) }
