// SPDX-License-Identifier: Apache-2.0

// Package conformance holds every SDK to the ABI: one guest in each language,
// written with its SDK to do the same, and one test that runs all of them over the vectors of
// sdk/spec and over every kind of answer, compiled and interpreted. An SDK for
// another language is finished when its guest passes.
package conformance
