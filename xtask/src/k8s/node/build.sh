#!/bin/sh
# Compiles Kubernetes from the source package of Debian. Usage: build.sh GO SOURCE FOLDER
# GO is Debian's folder of Go, SOURCE the archive. The programs are then in FOLDER/bin.
set -eu
export GOROOT=$1 GOPATH=$3/gopath GOCACHE=$3/cache GO111MODULE=off CGO_ENABLED=0
export PATH="$GOROOT/bin:$PATH"
source=$2 bin=$3/bin
root=k8s.io/kubernetes
tree=$GOPATH/src/$root
mkdir -p "$tree" "$bin"
[ -e "$tree/cmd" ] || tar --extract --file "$source" --directory "$tree" --strip-components 1
cd "$tree"

# What Kubernetes has since 1.26: before, the kubelet named its peer in a way that only servers in Go accept.
dial=pkg/kubelet/cm/devicemanager/endpoint.go
grep -q WithAuthority "$dial" || sed -i 's/grpc.WithInsecure(), grpc.WithBlock(),/grpc.WithAuthority("localhost"), &/' "$dial"

# The package lacks one generated file: the schemas of all objects.
schemas=pkg/generated/openapi/zz_generated.openapi.go
if [ ! -e "$schemas" ]; then
    go build -o "$bin/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    packages=$(grep -rl --include='*.go' '^// *+k8s:openapi-gen=true' cmd pkg plugin staging/src/k8s.io |
        xargs -n 1 dirname | sort -u | grep -v -e _examples -e sample- -e testdata |
        sed "s,^staging/src/,$root/vendor/,; t; s,^,$root/," | paste -sd ,)
    "$bin/openapi-gen" -i "$packages" -p "$root/pkg/generated/openapi" -O zz_generated.openapi \
        -h hack/boilerplate/boilerplate.generatego.txt -r "$3/violations"
fi
version=$root/vendor/k8s.io/component-base/version
for name in kubelet kube-apiserver; do
    [ -x "$bin/$name" ] ||
        go build -o "$bin/$name" -ldflags "-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20" \
            "./cmd/$name"
done
