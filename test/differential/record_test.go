// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// recorded are the stories that CI tells: those that take seconds, also where
// everything is slow. All are compared with upstream itself.
var recorded = []string{
	"stage", "odd writes", "patches", "reviews", "subresources", "admission", "definitions", "custom resources", "policies",
	"create v1 ConfigMap", "create v1 Service", "create apps/v1 ReplicaSet", "create autoscaling/v2 HorizontalPodAutoscaler",
	"create networking.k8s.io/v1 NetworkPolicy", "create rbac.authorization.k8s.io/v1 RoleBinding",
}

// recordFile has a line for each of them: its name, a sum of its requests, and a
// sum of each answer. It says that an answer is not what it was when it was
// compared with upstream's, and `make differential` says what upstream's is.
const recordFile = "testdata/answers.txt"

// sumSize is that of a sum in the record.
const sumSize = 4

func shorten(text string) string {
	digest := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(digest[:])[:sumSize]
}

// sum is what the record keeps of an answer.
func sum(r request, a answer) string {
	if r.loose() {
		return shorten(fmt.Sprint(a.status))
	}
	return shorten(fmt.Sprint(a.status, a.header, text(a.body)))
}

// line is a story's in the record.
func line(s story, sums []string) string {
	return s.name + "\t" + shorten(fmt.Sprint(s.requests)) + "\t" + strings.Join(sums, "")
}

// againstRecord compares our answers with the record.
func againstRecord(t *testing.T, ours *asker, stories []story) {
	t.Helper()
	data, err := os.ReadFile(recordFile)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{}
	for text := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(strings.TrimSuffix(text, "\n"), "\t")
		known[name] = rest
	}
	for _, s := range stories {
		if part := os.Getenv("STORIES"); !slices.Contains(recorded, s.name) || !strings.Contains(s.name, part) && s.name != "stage" {
			continue
		}
		requests, sums, ok := strings.Cut(known[s.name], "\t")
		if !ok || requests != shorten(fmt.Sprint(s.requests)) || len(sums) != sumSize*len(s.requests) {
			t.Errorf("%s: the story has changed since its answers were recorded: run `make differential RECORD=1`", s.name)
			continue
		}
		answers, err := ours.tell(t.Context(), s)
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		}
		for i, r := range s.requests {
			if now, then := sum(r, answers[i]), sums[sumSize*i:sumSize*(i+1)]; now != then {
				t.Errorf("%s: %s: the answer is not what it was when it was compared with upstream's (its sum is %s, %s is recorded); `make differential` compares again.\nIt is: %d %v\n%.3000s",
					s.name, r.title(i), now, then, answers[i].status, answers[i].header, text(answers[i].body))
			}
		}
	}
}
