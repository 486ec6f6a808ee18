#!/bin/sh
# Becomes a node with a real API server, kubelet and container runtime, and follows pods with shares on it.
# Usage: node.sh PROGRAMS OTHERS FOLDER, in namespaces of mounts, processes and network of its own.
# PROGRAMS is the folder of gpushare and the simulated card, OTHERS the folders of Kubernetes. Logs go to FOLDER.
set -eu
programs=$1 others=$2 logs=$3
here=/run/node
export PATH="$programs:$others:/usr/sbin:/usr/bin:/sbin:/bin"

# Waits for a fact. The caller's limit ends a wait in vain.
wait_for() { until "$@" >/dev/null 2>&1; do sleep 0.2; done; }
is() { [ "$("$1")" = "$2" ]; }
start() {
    name=$1
    shift
    "$@" >>"$logs/$name.log" 2>&1 &
}
kubectl() { command kubectl --server https://127.0.0.1:6443 --insecure-skip-tls-verify --token "$token" "$@"; }

mount -t proc proc /proc
ip link set lo up
# The kubelet takes no loopback address for its own.
ip addr add 192.0.2.1/24 dev lo
ip route add default dev lo

# The files of the node: those of the driver are the simulated card's.
mount -t tmpfs -o mode=755 node /run
mkdir -p $here/changes $here/work $here/cni/bin $here/cni/net.d /run/lock
mount -t overlay -o lowerdir=/usr/lib64,upperdir=$here/changes,workdir=$here/work driver /usr/lib64
cp "$programs/libsimcuda.so" /usr/lib64/libcuda.so.1
cp "$programs/libsimnvml.so" /usr/lib64/libnvidia-ml.so.1
mkdir $here/dev
for name in null zero full random urandom kmsg; do
    : >$here/dev/$name
    mount --bind /dev/$name $here/dev/$name
done
mount --rbind $here/dev /dev
mkdir /dev/pts /dev/shm /dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666 devpts /dev/pts
ln -s pts/ptmx /dev/ptmx
ln -s /proc/self/fd /dev/fd
for name in nvidiactl nvidia-uvm nvidia0; do mknod -m 666 /dev/$name c 1 3; done
mkdir -p /var/lib/kubelet /etc/gpushare /var/lib/gpushare /var/log
for folder in /var/lib/kubelet /etc/gpushare /var/lib/gpushare /var/log; do mount -t tmpfs -o mode=755 node $folder; done
mount --make-rshared /

# An image is a folder. Usage: image NAME FOLDER
image() {
    tar --create --directory "$2" --file $here/layer.tar .
    layer=$(sha256sum $here/layer.tar | cut -d ' ' -f 1)
    printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["/main"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
        "$(dpkg --print-architecture)" "$layer" >$here/config.json
    printf '[{"Config":"config.json","RepoTags":["docker.io/local/%s:1"],"Layers":["layer.tar"]}]' "$1" >$here/manifest.json
    tar --create --directory $here --file "$here/$1.tar" manifest.json config.json layer.tar
    ctr --address $here/containerd.sock --namespace k8s.io images import "$here/$1.tar" >>"$logs/images.log" 2>&1
}

cat >$here/containerd.toml <<END
version = 2
root = "$here/containerd"
state = "$here/state"
[grpc]
address = "$here/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/local/pause:1"
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$here/cni/bin"
conf_dir = "$here/cni/net.d"
END
start containerd containerd --config $here/containerd.toml
wait_for test -S $here/containerd.sock
mkdir -p $here/pause $here/pod/lib64 $here/pod/usr/bin $here/pod/etc
cp "$programs/pause" $here/pause/main
cp "$programs/gpushare-workload" $here/pod/main
for library in $(ldd "$programs/gpushare-workload" | grep -o '/[^ ]*'); do
    mkdir -p "$here/pod${library%/*}"
    cp --dereference "$library" "$here/pod$library"
done
image pause $here/pause
image pod $here/pod

# The API server, with the rights that the manifests give.
cat >$here/tokens <<END
admin,admin,admin,"system:masters"
node,system:node:node-1,node-1,"system:nodes"
plugin,system:serviceaccount:gpushare:gpushare,plugin,"system:serviceaccounts"
END
token=admin
openssl genrsa -out $here/key 2048 2>/dev/null
start etcd etcd --data-dir $here/etcd
start kube-apiserver kube-apiserver --etcd-servers http://127.0.0.1:2379 --secure-port 6443 --insecure-port 0 \
    --advertise-address 192.0.2.1 --cert-dir $here/certificates --token-auth-file $here/tokens \
    --service-account-key-file $here/key --service-account-signing-key-file $here/key \
    --service-account-issuer https://kubernetes.default.svc --authorization-mode Node,RBAC \
    --disable-admission-plugins ServiceAccount --service-cluster-ip-range 10.0.0.0/24 --allow-privileged
wait_for kubectl get namespace default
# This version does not know all fields of the DaemonSet, which nobody starts here.
kubectl apply --validate=false --filename "$programs/gpushare.yaml" >>"$logs/kubectl.log" 2>&1
kubectl create namespace research >>"$logs/kubectl.log" 2>&1
config() {
    cat <<END
apiVersion: v1
kind: Config
clusters: [{name: here, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: me, user: {token: $1}}]
contexts: [{name: here, context: {cluster: here, user: me}}]
current-context: here
END
}
config node >$here/node.yaml
config plugin >$here/plugin.yaml

# The node.
cat >$here/kubelet.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
failSwapOn: false
enforceNodeAllocatable: []
evictionHard: {memory.available: 1Mi, nodefs.available: "1%", imagefs.available: "1%"}
resolvConf: ""
END
start_kubelet() {
    start kubelet kubelet --config $here/kubelet.yaml --kubeconfig $here/node.yaml --hostname-override node-1 \
        --container-runtime remote --container-runtime-endpoint unix://$here/containerd.sock
    kubelet=$!
}
start_gpushare() {
    start daemon env LD_LIBRARY_PATH=/usr/lib64 SIMGPU_SOCKET=$here/card/card.sock gpushare-scheduler --system --metrics off
    daemon=$!
    wait_for gpushare-ctl status
    start plugin env LD_LIBRARY_PATH=/usr/lib64 SIMGPU_SOCKET=$here/card/card.sock KUBECONFIG=$here/plugin.yaml gpushare-k8s device-plugin \
        --shares 4 --inject mounts --node node-1 --library "$programs/libgpushare.so" --ctl "$programs/gpushare-ctl"
    plugin=$!
}
mkdir $here/card
start card simgpu-card --socket $here/card/card.sock --memory 256MiB
wait_for test -S $here/card/card.sock
printf 'pod_sessions = true\n[scheduling]\ncontext_reserve = "2MiB"\n' >/etc/gpushare/config.toml
start_kubelet
wait_for kubectl get node node-1
start_gpushare
allocatable() { kubectl get node node-1 --output 'jsonpath={.status.allocatable.gpushare\.dev/gpu}'; }
wait_for is allocatable 4
echo "registered: the kubelet offers 4 shares"

# Usage: pod NAME SHARES STEPS ANNOTATIONS
pod() {
    kubectl apply --filename - >>"$logs/kubectl.log" 2>&1 <<END
apiVersion: v1
kind: Pod
metadata: {name: $1, namespace: research, annotations: {$4}}
spec:
  nodeName: node-1
  hostNetwork: true
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  volumes: [{name: card, hostPath: {path: $here/card}}]
  containers:
    - name: main
      image: docker.io/local/pod:1
      imagePullPolicy: Never
      args: [train, --memory, 48MiB, --compute, 5ms, --steps, "$3"]
      env: [{name: SIMGPU_SOCKET, value: /card/card.sock}]
      volumeMounts: [{name: card, mountPath: /card}]
      resources: {limits: {gpushare.dev/gpu: $2}}
END
}
pod ana 1 1000000 'gpushare.dev/memory: 64MiB'
shows() { gpushare-ctl status --verbose | grep -E "research/ana +48MiB of $1 "; }
wait_for shows 64MiB
echo "allocated: a container of the kubelet computes with its share and the limit of its annotation"

kubectl --namespace research annotate pod ana gpushare.dev/memory=96MiB --overwrite >>"$logs/kubectl.log"
wait_for shows 96MiB
kubectl --namespace research annotate pod ana gpushare.dev/memory=lots --overwrite >>"$logs/kubectl.log"
events() { kubectl --namespace research get events --field-selector reason=GpushareAnnotation; }
names_it() { events | grep -F 'lots'; }
wait_for names_it
echo "annotated: the limit changes while the pod runs, and the API server keeps an event about a wrong one"

pod two 2 1 ''
refused() { kubectl --namespace research get pod two --output 'jsonpath={.status.message}' | grep 'asks for 2 shares'; }
wait_for refused
echo "refused: the status of a pod that asks for two shares of one card says why"

pod ben 1 50 ''
succeeded() { [ "$(kubectl --namespace research get pod ben --output 'jsonpath={.status.phase}')" = Succeeded ]; }
wait_for succeeded
kubectl --namespace research logs ben >"$logs/ben.log" 2>&1 || cat /var/log/pods/research_ben_*/main/0.log >"$logs/ben.log"
grep -q '"corrupted":0' "$logs/ben.log"
echo "finished: a second pod's results are right"

registrations() { grep -c 'registered gpushare.dev/gpu' "$logs/plugin.log"; }
before=$(registrations)
kill "$kubelet"
wait "$kubelet" || true
start_kubelet
registers_again() { [ "$(registrations)" -gt "$before" ]; }
wait_for registers_again
wait_for is allocatable 4
echo "kubelet restarted: the plugin registered again"

kill "$plugin" "$daemon"
wait "$plugin" "$daemon" || true
start_gpushare
wait_for shows 96MiB
kubectl --namespace research annotate pod ana gpushare.dev/memory=80MiB --overwrite >>"$logs/kubectl.log"
wait_for shows 80MiB
echo "upgraded: the pod is back in its session, and its annotations still count"

kubectl --namespace research delete pod ana ben two >>"$logs/kubectl.log"
is_empty() { ! gpushare-ctl status | grep research/; }
wait_for is_empty
echo "deleted: no session is left"
