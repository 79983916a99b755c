// SPDX-License-Identifier: Apache-2.0

package loader

// Bounded is what an entry of an origin may ask of fetching.
var Bounded = bounded
