{{/* Labels by which objects of this release find its pods. They never change. */}}
{{- define "gpushare.selector" -}}
app.kubernetes.io/name: gpushare
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "gpushare.labels" -}}
{{ include "gpushare.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* Name of the objects: that of the release, with the chart's unless it is in it. */}}
{{- define "gpushare.name" -}}
{{- if contains "gpushare" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-gpushare{{ end }}
{{- end }}

{{- define "gpushare.account" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create }}{{ include "gpushare.name" . }}
{{- else }}default{{ end }}
{{- end }}

{{- define "gpushare.image" -}}
{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}
{{- else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* A value of TOML: text in quotes, a number without a point, a list. */}}
{{- define "gpushare.toml.value" -}}
{{- if or (kindIs "float64" .) (kindIs "int64" .) (kindIs "int" .) }}{{ int64 . }}
{{- else }}{{ toJson . }}{{ end }}
{{- end }}

{{/* Keys of one table of TOML, without the tables in it. */}}
{{- define "gpushare.toml.keys" -}}
{{- range $key, $value := . }}
{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ include "gpushare.toml.value" $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* Configuration file of the daemon. */}}
{{- define "gpushare.config" -}}
# Each pod has a session of its own, which the plugin makes.
pod_sessions = true
metrics = "0.0.0.0:{{ .Values.metrics.port }}"
metrics_names = {{ .Values.metrics.names }}
{{- include "gpushare.toml.keys" .Values.scheduler.config }}
{{- range $name, $table := .Values.scheduler.config }}
{{- if eq $name "gpus" }}
{{- range $card, $keys := $table }}

[gpus.{{ $card }}]
{{- include "gpushare.toml.keys" $keys }}
{{- end }}
{{- else if kindIs "map" $table }}

[{{ $name }}]
{{- include "gpushare.toml.keys" $table }}
{{- end }}
{{- end }}
{{- end }}

{{/* Most that pods of each namespace may ask for, which the plugin reads. */}}
{{- define "gpushare.maxima" -}}
[default]
{{- include "gpushare.toml.keys" .Values.plugin.maxima.default }}
{{- range $namespace, $keys := .Values.plugin.maxima.namespaces }}

[namespaces.{{ $namespace }}]
{{- include "gpushare.toml.keys" $keys }}
{{- end }}
{{- end }}

{{/* What both containers need to reach the cards. */}}
{{- define "gpushare.cards.env" -}}
{{ if eq .Values.cards.access "runtime" -}}
- name: NVIDIA_VISIBLE_DEVICES
  value: all
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
{{- else -}}
- name: LD_LIBRARY_PATH
  value: /opt/nvidia
{{- end }}
{{- end }}

{{- define "gpushare.cards.mount" -}}
{{ if eq .Values.cards.access "host" -}}
- name: nvml
  mountPath: /opt/nvidia/libnvidia-ml.so.1
  readOnly: true
{{- end }}
{{- end }}

{{/* Newest version of the API for claims that the cluster has; the stable one where none is asked. */}}
{{- define "gpushare.resource.api" -}}
{{- if .Capabilities.APIVersions.Has "resource.k8s.io/v1" }}resource.k8s.io/v1
{{- else if .Capabilities.APIVersions.Has "resource.k8s.io/v1beta2" }}resource.k8s.io/v1beta2
{{- else if .Capabilities.APIVersions.Has "resource.k8s.io/v1beta1" }}resource.k8s.io/v1beta1
{{- else }}resource.k8s.io/v1{{ end }}
{{- end }}

{{/* Rules that hold between values, which the schema cannot say. */}}
{{- define "gpushare.check" -}}
{{- include "gpushare.ranges" . }}
{{- if and (eq .Values.cards.access "runtime") (not .Values.cards.runtimeClass) }}
{{- fail "cards.runtimeClass is empty, but cards.access is `runtime`; name the runtime class of NVIDIA's runtime, or set cards.access to `host`" }}
{{- end }}
{{- if and (eq .Values.plugin.inject "nvidia-runtime") (ne .Values.cards.access "runtime") }}
{{- fail "plugin.inject is `nvidia-runtime`, which needs NVIDIA's runtime on the nodes, but cards.access is not `runtime`; set it, or set plugin.inject to `mounts`" }}
{{- end }}
{{- if and (eq .Values.plugin.offer "dra") (ne .Values.plugin.inject "cdi") }}
{{- fail "plugin.offer is `dra`, which gives cards by CDI only, but plugin.inject is not `cdi`; set it, or set plugin.offer to `device-plugin`" }}
{{- end }}
{{- if and (eq .Values.plugin.offer "dra") (semverCompare "<1.32.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail "plugin.offer is `dra`, which needs Kubernetes 1.32 or newer; set it to `device-plugin`" }}
{{- end }}
{{- if and .Values.serviceAccount.name (eq .Values.serviceAccount.name "default") .Values.rbac.create }}
{{- fail "serviceAccount.name is `default`, whose rights every pod of the namespace has; choose another name" }}
{{- end }}
{{- end }}
