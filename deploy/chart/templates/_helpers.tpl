{{- define "plimsoll.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name }}
{{- end }}

{{- define "plimsoll.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "plimsoll.fullname" .) }}
{{- else }}
{{- required "serviceAccount.name is missing: it names the service account that is there where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "plimsoll.labels" -}}
app.kubernetes.io/name: plimsoll
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
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

{{- /* The ports of the URLs that the values name, as a list. */ -}}
{{- define "plimsoll.urlPorts" -}}
{{- $urls := list .Values.prometheus.url }}
{{- range (list "backends" "passOn") }}
{{- range $name, $other := (get $.Values.config . | default dict) }}
{{- with $other.url }}
{{- $urls = append $urls . }}
{{- end }}
{{- end }}
{{- end }}
{{- $ports := list }}
{{- range $urls }}
{{- $url := urlParse . }}
{{- $given := regexFind ":[0-9]+$" $url.host | trimPrefix ":" }}
{{- $ports = append $ports ($given | default (eq $url.scheme "https" | ternary "443" "80") | int) }}
{{- end }}
{{- toYaml $ports }}
{{- end }}

{{- /* Whether a controller writes the CA to the APIServices. */ -}}
{{- define "plimsoll.caInjected" -}}
{{- range $name, $value := .Values.apiServices.annotations }}
{{- if or (hasPrefix "cert-manager.io/inject-" $name) (eq $name "service.beta.openshift.io/inject-cabundle") }}
{{- true }}
{{- end }}
{{- end }}
{{- end }}
