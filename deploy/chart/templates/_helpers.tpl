{{- define "plimsoll.labels" -}}
app.kubernetes.io/name: plimsoll
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "plimsoll.selector" -}}
app.kubernetes.io/name: plimsoll
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The names of the group versions that are registered: name, group, version, priority. */ -}}
{{- define "plimsoll.apiservices" -}}
{{- if .Values.apiServices.custom }}
- {group: custom.metrics.k8s.io, version: v1beta1, priority: 100}
- {group: custom.metrics.k8s.io, version: v1beta2, priority: 200}
{{- end }}
{{- if .Values.apiServices.external }}
- {group: external.metrics.k8s.io, version: v1beta1, priority: 100}
{{- end }}
{{- if .Values.apiServices.resource }}
- {group: metrics.k8s.io, version: v1beta1, priority: 100}
{{- end }}
{{- end }}
