{{- define "plimsoll.fullname" -}}
{{- $name := .Values.fullnameOverride | default .Release.Name }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
{{- fail (printf "the release name %s can't name a Service (lower-case letters, digits and -, a letter first): set fullnameOverride" $name) }}
{{- end }}
{{- $name }}
{{- end }}

{{- define "plimsoll.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "plimsoll.fullname" .) }}
{{- else }}
{{- required "serviceAccount.name is missing: it names the service account that is there where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* A chart of a release has the digest of its image as an annotation: the name alone could be moved to another image. */ -}}
{{- define "plimsoll.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- $name := printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- $released := regexFind "[^ ]+@sha256:[0-9a-f]{64}" (index .Chart.Annotations "artifacthub.io/images") }}
{{- and (not .Values.image.tag) (hasPrefix (printf "%s@" $name) $released) | ternary $released $name }}
{{- end }}
{{- end }}

{{- /* Whether the image is known to be that of the chart. */ -}}
{{- define "plimsoll.imageOfChart" -}}
{{- if .Values.image.digest }}
{{- if contains .Values.image.digest (toYaml .Chart.Annotations) }}{{ true }}{{ end }}
{{- else if eq (.Values.image.tag | default .Chart.AppVersion) .Chart.AppVersion }}
{{- true }}
{{- end }}
{{- end }}

{{- /* The labels of an object: a list of the context and, if any, labels of its own, which take precedence. */ -}}
{{- define "plimsoll.labelsWith" -}}
{{- $own := index . 1 }}
{{- with index . 0 }}
{{- $standard := dict "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/managed-by" .Release.Service
    "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version) }}
{{- $selector := include "plimsoll.selector" . | fromYaml }}
{{- merge dict ($own | default dict) (.Values.commonLabels | default dict) $selector $standard | toYaml }}
{{- end }}
{{- end }}

{{- define "plimsoll.labels" -}}
{{- include "plimsoll.labelsWith" (list . dict) }}
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
{{- if .Values.apiServices.decisions }}
- {group: decisions.plimsoll.dev, version: v1alpha1, priority: 100}
{{- end }}
{{- if .Values.apiServices.resource }}
- {group: metrics.k8s.io, version: v1beta1, priority: 100}
{{- end }}
{{- end }}

{{- /* The ports that the values open, and those of the URLs that they name, as a list. */ -}}
{{- define "plimsoll.egressPorts" -}}
{{- $urls := list .Values.prometheus.url }}
{{- range (list "backends" "passOn") }}
{{- range $name, $other := (get ($.Values.config | default dict) . | default dict) }}
{{- with $other.url }}
{{- $urls = append $urls . }}
{{- end }}
{{- end }}
{{- end }}
{{- range .Values.env }}
{{- if and .value (has (lower .name) (list "https_proxy" "http_proxy" "all_proxy")) (not (contains "$(" .value)) }}
{{- $urls = append $urls (contains "://" .value | ternary .value (printf "http://%s" .value)) }}
{{- end }}
{{- end }}
{{- $ports := list }}
{{- range .Values.networkPolicy.egressPorts }}
{{- $ports = append $ports (int .) }}
{{- end }}
{{- range $urls }}
{{- $url := urlParse . }}
{{- $given := regexFind ":[0-9]+$" $url.host | trimPrefix ":" }}
{{- $ports = append $ports ($given | default (eq $url.scheme "https" | ternary "443" "80") | int) }}
{{- end }}
{{- uniq $ports | toYaml }}
{{- end }}

{{- /* Whether a controller writes the CA to the APIServices. */ -}}
{{- define "plimsoll.caInjected" -}}
{{- range $name, $value := .Values.apiServices.annotations }}
{{- if or (hasPrefix "cert-manager.io/inject-" $name) (eq $name "service.beta.openshift.io/inject-cabundle") }}
{{- true }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Refuses what would override values that the rest of the chart relies on. */ -}}
{{- define "plimsoll.check" -}}
{{- range $name := list "commonLabels" "podLabels" }}
{{- range $label, $_ := include "plimsoll.selector" $ | fromYaml }}
{{- if hasKey (get $.Values $name | default dict) $label }}
{{- fail (printf "%s: %s selects the Deployment's pods and can't be changed" $name $label) }}
{{- end }}
{{- end }}
{{- end }}
{{- /* Of a flag that is given twice, the last counts. */}}
{{- $values := dict "config" "config" "prometheus-url" "prometheus.url" "secure-port" "port"
    "service-name" "fullnameOverride" "leader-elect-resource-name" "fullnameOverride" "native-hpas" "nativeHpas"
    "log-format" "logFormat" "tls-cert-file" "tls.secret" "tls-private-key-file" "tls.secret" }}
{{- if .Values.prometheus.tokenSecret }}{{ $_ := set $values "prometheus-token-file" "prometheus.tokenSecret" }}{{ end }}
{{- if .Values.prometheus.caConfigMap }}{{ $_ := set $values "prometheus-ca-file" "prometheus.caConfigMap" }}{{ end }}
{{- range .Values.extraArgs }}
{{- $flag := regexFind "^--[^=]*" . | trimPrefix "--" }}
{{- with get $values $flag }}
{{- fail (printf "extraArgs: --%s: set the value %s instead" $flag .) }}
{{- end }}
{{- if has $flag (list "leader-elect-resource-namespace" "service-namespace") }}
{{- fail (printf "extraArgs: --%s: the Service, the Lease and its Role are in the release's namespace" $flag) }}
{{- end }}
{{- end }}
{{- end }}
