{{- /* repository:tag, or repository@digest where there is one, of a list of the root and an image of values.yaml. */}}
{{- define "orcastream.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{- /* Drain, then the iteration under way at its longest, then a margin. */}}
{{- define "orcastream.workerGraceSeconds" -}}
{{ add .Values.worker.drainGraceSeconds .Values.worker.stallTimeoutSeconds 10 }}
{{- end }}

{{- /* preStop, then the time of open streams, then what the server allows itself for the last events, then a margin. */}}
{{- define "orcastream.gatewayGraceSeconds" -}}
{{ add 10 .Values.gateway.shutdownGraceSeconds 5 10 }}
{{- end }}
