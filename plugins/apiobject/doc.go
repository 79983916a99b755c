// SPDX-License-Identifier: Apache-2.0

// Package apiobject is the Plugin of the API: the entry of the configuration file as
// a custom resource, kind Plugin of plugins.wasmplane.dev/v1, which the binary installs.
//
// plugindefinition.Definition is what is installed. Entry makes a manifest.Entry of an object, with
// the same defaults and checks as the file's; Guard refuses, when it is written,
// what could not be loaded for its form or its name. A Controller gives the
// entries of all objects to the loader, and writes back what became of them: each
// process reports for itself, the object's status sums up.
//
// An object never touches what the configuration file holds, reads no files of
// the machine but modules below the folder that the operator names, and no plugin
// of the API takes part in writes of Plugins, so that none can lock itself in.
package apiobject
