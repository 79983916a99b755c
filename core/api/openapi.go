package api

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

type openAPI struct{ contract *Contract }

func newOpenAPI(c *Contract) *openAPI { return &openAPI{contract: c} }

// OpenAPIV2 is the whole document that /openapi/v2 serves, as JSON and as protobuf.
func (c *Contract) OpenAPIV2() (json, proto []byte, err error) {
	return nil, nil, fmt.Errorf("OpenAPI v2 is not built yet")
}

// OpenAPIV3 is the document of one group version that /openapi/v3/... serves, as JSON and as protobuf.
func (c *Contract) OpenAPIV3(gv schema.GroupVersion) (json, proto []byte, err error) {
	return nil, nil, fmt.Errorf("OpenAPI v3 of %s is not built yet", gv)
}
