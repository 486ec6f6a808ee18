{{/* Refuses values outside of the ranges in files/ranges.yaml. The schema would refuse them without a sentence. */}}
{{- define "gpushare.ranges" -}}
{{- $values := .Values }}
{{- range $path, $range := .Files.Get "files/ranges.yaml" | fromYaml }}
{{- include "gpushare.ranges.below" (dict "value" $values "names" (splitList "." $path) "path" "" "range" $range) }}
{{- end }}
{{- end }}

{{/* Compares the values to which the rest of a path leads. */}}
{{- define "gpushare.ranges.below" -}}
{{- $at := . }}
{{- if not .names }}
{{- include "gpushare.ranges.one" . }}
{{- else if kindIs "map" .value }}
{{- range $name, $value := .value }}
{{- if has (first $at.names) (list "*" $name) }}
{{- $path := printf "%s.%s" $at.path $name | trimPrefix "." }}
{{- include "gpushare.ranges.below" (dict "value" $value "names" (rest $at.names) "path" $path "range" $at.range) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gpushare.ranges.one" -}}
{{- if kindIs "string" .value }}
{{- $least := first .range.percent }}
{{- $greatest := last .range.percent }}
{{- $share := trimSuffix "%" .value | float64 }}
{{- if or (lt $share (float64 $least)) (gt $share (float64 $greatest)) }}
{{- fail (printf "%s is %s; write a share from %v%% to %v%%" .path .value $least $greatest) }}
{{- end }}
{{- else }}
{{- $least := first .range.number | int64 }}
{{- $greatest := last .range.number | int64 }}
{{- $number := int64 .value }}
{{- if or (lt $number $least) (gt $number $greatest) }}
{{- fail (printf "%s is %d; write a number from %d to %d" .path $number $least $greatest) }}
{{- end }}
{{- end }}
{{- end }}
