{{/* The name of the objects. */}}
{{- define "ocpdl.name" -}}
{{- default (ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name)) .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* What selects the pods of the learner. */}}
{{- define "ocpdl.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: learner
{{- end -}}

{{/* Those of the encoders. */}}
{{- define "ocpdl.encoders" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: encoder
{{- end -}}

{{/* The topic that they code: the input, unless the settings name another. */}}
{{- define "ocpdl.coded" -}}
{{- $input := .Values.settings.input -}}
{{- $own := ternary (get (ternary $input dict (kindIs "map" $input)) "topic") $input (kindIs "map" $input) -}}
{{- dig "encoders" "input" $own .Values.settings -}}
{{- end -}}

{{- define "ocpdl.encoders.group" -}}
{{- $other := dig "encoders" "input" "" .Values.settings -}}
{{- ternary (printf "%s.%s.encoders" .Values.settings.model $other) (printf "%s.encoders" .Values.settings.model) (ne $other "") -}}
{{- end -}}

{{/* What every object is labelled with. */}}
{{- define "ocpdl.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "ocpdl.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "ocpdl.serviceAccount" -}}
{{- default (ternary (include "ocpdl.name" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "ocpdl.port" -}}
{{- dig "http" "port" 9464 .Values.settings -}}
{{- end -}}

{{/* The settings of the service as JSON, which is YAML that nobody rounds: with the place to listen at, and the files of the Secret. */}}
{{- define "ocpdl.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- $_ := set $settings "http" (merge (deepCopy (default dict $settings.http)) (dict "host" "0.0.0.0")) -}}
{{- $secret := .Values.existingSecret -}}
{{- if $secret.name -}}
{{- $kafka := default dict $settings.kafka -}}
{{- range $key, $setting := dict "saslPassword" "sasl_password_file" "ca" "ssl_ca" "certificate" "ssl_certificate" "key" "ssl_key" "keyPassword" "ssl_key_password_file" -}}
{{- with index $secret $key -}}
{{- $_ := set $kafka $setting (printf "/run/secrets/kafka/%s" .) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $settings "kafka" $kafka -}}
{{- end -}}
{{- mustToPrettyJson $settings -}}
{{- end -}}

{{/* Twice the patience with a broker, after which a call that hangs is given up, and half a minute to write what is left. */}}
{{- define "ocpdl.grace" -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds -}}
{{- add (ceil (mulf 2 (dig "kafka" "patience_s" 60 .Values.settings))) 30 -}}
{{- else -}}
{{- int64 .Values.terminationGracePeriodSeconds -}}
{{- end -}}
{{- end -}}

{{/* Of every pod. */}}
{{- define "ocpdl.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Of every container. */}}
{{- define "ocpdl.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* What every pod of ours has in common. Without links there are no variables that a Service named ocpdl would give to a pod. */}}
{{- define "ocpdl.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "ocpdl.podSecurity" . | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What a container needs to speak with the broker, given more variables. */}}
{{- define "ocpdl.env" -}}
- name: NUMBA_CACHE_DIR
  value: /var/cache/stream-ocpdl
{{- with . }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "ocpdl.mounts" -}}
- name: settings
  mountPath: /etc/stream-ocpdl
  readOnly: true
- name: kernels
  mountPath: /var/cache/stream-ocpdl
- name: tmp
  mountPath: /tmp
{{- if .Values.existingSecret.name }}
- name: kafka
  mountPath: /run/secrets/kafka
  readOnly: true
{{- end }}
{{- if .Values.checkpoints.existingClaim }}
- name: checkpoints
  mountPath: {{ .Values.settings.checkpoints }}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Given the name of the ConfigMap, and that of the Secret, if there is one. */}}
{{- define "ocpdl.volumes" -}}
{{- $values := .root.Values -}}
- name: settings
  configMap:
    name: {{ .settings }}
- name: kernels
  {{- if $values.kernelCache.existingClaim }}
  persistentVolumeClaim:
    claimName: {{ $values.kernelCache.existingClaim }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ $values.kernelCache.sizeLimit }}
  {{- end }}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- with .secret }}
- name: kafka
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with $values.checkpoints.existingClaim }}
- name: checkpoints
  persistentVolumeClaim:
    claimName: {{ . }}
{{- end }}
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
