// SPDX-License-Identifier: Apache-2.0

package kubectltexts

// Late is for tests, which import kubectl and are not to be part of this package: it would wait for it.
var Late = &late
