// SPDX-License-Identifier: Apache-2.0

// Package kubeconfig writes kubeconfigs: of the cluster's own clients, and into the one
// that a user has.
package kubeconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// Access says how to reach the cluster, and as whom.
type Access struct {
	// Cluster names the cluster; the context is named after it too.
	Cluster string
	// Server is the apiserver's URL.
	Server string
	// CA is what the server is known by, in PEM: the roots of the authority.
	CA []byte
	// User names the credentials in the file; default "USER@CLUSTER" is for the caller to choose.
	User string
	// Pair are the credentials. With Embed they are copied into the file, which can
	// then be carried elsewhere; otherwise the file points at the pair, and clients
	// use a renewed one without being started again.
	Pair  *pki.Pair
	Embed bool
	// Namespace of the context, empty for "default".
	Namespace string
}

// Of describes the credentials that the authority issues to id, for the apiserver at server.
func Of(a *pki.Authority, cluster, server string, id pki.Identity) (Access, error) {
	p, err := a.Client(id)
	if err != nil {
		return Access{}, err
	}
	return Access{Cluster: cluster, Server: server, CA: a.RootsPEM(), User: id.User + "@" + cluster, Pair: p}, nil
}

func (k Access) config() (*clientcmdapi.Config, error) {
	user := clientcmdapi.NewAuthInfo()
	if k.Embed {
		key, err := k.Pair.KeyPEM()
		if err != nil {
			return nil, err
		}
		user.ClientCertificateData, user.ClientKeyData = k.Pair.CertPEM(), key
	} else {
		file, err := filepath.Abs(k.Pair.File())
		if err != nil {
			return nil, fmt.Errorf("locate the credentials: %w", err)
		}
		user.ClientCertificate, user.ClientKey = file, file
	}
	c := clientcmdapi.NewConfig()
	c.Clusters[k.Cluster] = &clientcmdapi.Cluster{Server: k.Server, CertificateAuthorityData: k.CA}
	c.AuthInfos[k.User] = user
	c.Contexts[k.Cluster] = &clientcmdapi.Context{Cluster: k.Cluster, AuthInfo: k.User, Namespace: k.Namespace}
	c.CurrentContext = k.Cluster
	return c, nil
}

// Write writes file, 0600, replacing what is there.
func Write(file string, k Access) error {
	c, err := k.config()
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	return writeConfig(file, c)
}

// Refresh writes file so that it reaches the cluster, and keeps what its
// user has changed: contexts with their namespaces, the current one as long as it is
// of this cluster, further users, a proxy. A file that cannot be read is kept beside, as FILE.unreadable.
func Refresh(file string, k Access) error {
	theirs, err := clientcmd.LoadFromFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Write(file, k)
	case err != nil:
		if err := os.Rename(file, file+".unreadable"); err != nil {
			return fmt.Errorf("set the kubeconfig aside that cannot be read: %w", err)
		}
		return Write(file, k)
	}
	ours, err := k.config()
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	if known := theirs.Clusters[k.Cluster]; known == nil {
		theirs.Clusters[k.Cluster] = ours.Clusters[k.Cluster]
	} else {
		known.Server, known.CertificateAuthorityData, known.CertificateAuthority = k.Server, k.CA, ""
	}
	if known := theirs.AuthInfos[k.User]; known == nil {
		theirs.AuthInfos[k.User] = ours.AuthInfos[k.User]
	} else {
		own := ours.AuthInfos[k.User]
		known.ClientCertificate, known.ClientCertificateData = own.ClientCertificate, own.ClientCertificateData
		known.ClientKey, known.ClientKeyData = own.ClientKey, own.ClientKeyData
	}
	if theirs.Contexts[k.Cluster] == nil {
		theirs.Contexts[k.Cluster] = ours.Contexts[k.Cluster]
	}
	// The cluster's own tools go by this file: it must not lead them elsewhere.
	if current := theirs.Contexts[theirs.CurrentContext]; current == nil || current.Cluster != k.Cluster {
		theirs.CurrentContext = k.Cluster
	}
	return writeConfig(file, theirs)
}

// RefreshMerged writes the credentials of the context k.Cluster again, where a user's own
// kubeconfig still has it. Everything else in the file stays.
func RefreshMerged(file string, k Access) error {
	theirs, err := clientcmd.LoadFromFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the kubeconfig %s (it was left as it is): %w", file, err)
	}
	if theirs.Clusters[k.Cluster] == nil || theirs.AuthInfos[k.User] == nil {
		return nil
	}
	ours, err := k.config()
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	theirs.Clusters[k.Cluster], theirs.AuthInfos[k.User] = ours.Clusters[k.Cluster], ours.AuthInfos[k.User]
	return writeConfig(file, theirs)
}

// Merge puts the context k.Cluster into a user's own kubeconfig and
// makes it the current one. Everything else in the file stays; a file that
// cannot be read is left alone.
func Merge(file string, k Access) error {
	theirs, err := clientcmd.LoadFromFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		theirs = clientcmdapi.NewConfig()
	} else if err != nil {
		return fmt.Errorf("read the kubeconfig %s (it was left as it is): %w", file, err)
	}
	ours, err := k.config()
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	theirs.Clusters[k.Cluster] = ours.Clusters[k.Cluster]
	theirs.AuthInfos[k.User] = ours.AuthInfos[k.User]
	theirs.Contexts[k.Cluster] = ours.Contexts[k.Cluster]
	theirs.CurrentContext = k.Cluster
	return writeConfig(file, theirs)
}

// Unmerge takes the context out again. A file without it, or no file,
// is as good.
func Unmerge(file, cluster string) error {
	c, err := clientcmd.LoadFromFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the kubeconfig %s (it was left as it is): %w", file, err)
	}
	context, ok := c.Contexts[cluster]
	if !ok {
		return nil
	}
	delete(c.Contexts, cluster)
	delete(c.Clusters, context.Cluster)
	delete(c.AuthInfos, context.AuthInfo)
	if c.CurrentContext == cluster {
		c.CurrentContext = ""
	}
	return writeConfig(file, c)
}

func writeConfig(file string, c *clientcmdapi.Config) error {
	data, err := clientcmd.Write(*c)
	if err != nil {
		return fmt.Errorf("encode the kubeconfig %s: %w", file, err)
	}
	// A user's kubeconfig may be a link into a folder of their own: write where it points.
	if target, err := filepath.EvalSymlinks(file); err == nil {
		file = target
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("make the folder of the kubeconfig: %w", err)
	}
	return atomicfile.Write(file, data, 0o600)
}
