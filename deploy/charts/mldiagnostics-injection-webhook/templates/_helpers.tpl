{{- define "webhook.selector" -}}
app.kubernetes.io/name: mldiagnostics-injection-webhook
{{- end }}
{{- define "webhook.metadata" -}}
namespace: {{ .Release.Namespace }}
labels: {{- include "webhook.labels" . | nindent 2 }}
{{- end }}
{{- define "webhook.labels" -}}
app.kubernetes.io/name: mldiagnostics-injection-webhook
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: mldiagnostics
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "webhook.certificateSecret" -}}
{{- if eq .Values.certificates.mode "existingSecret" -}}
{{ required "certificates.secretName is empty: set it to the name of a Secret of type kubernetes.io/tls" .Values.certificates.secretName }}
{{- else -}}
mldiagnostics-injection-webhook-tls
{{- end }}
{{- end }}
{{- define "webhook.rules" -}}
- apiGroups: [""]
  apiVersions: [v1]
  operations: [CREATE]
  resources: [pods]
  scope: Namespaced
- apiGroups: [""]
  apiVersions: [v1]
  operations: [UPDATE]
  resources: [pods/ephemeralcontainers]
  scope: Namespaced
{{- end }}
{{- define "webhook.client" -}}
admissionReviewVersions: [v1]
clientConfig:
  {{- if eq .Values.certificates.mode "existingSecret" }}
  caBundle: {{ required "certificates.caBundle is empty: set it to the certificates that the API server trusts, in base64" .Values.certificates.caBundle }}
  {{- end }}
  service:
    name: mldiagnostics-injection-webhook
    namespace: {{ .Release.Namespace }}
    path: /mutate
    port: 443
# Whatever happens to the webhook, pods start.
failurePolicy: Ignore
matchPolicy: Equivalent
reinvocationPolicy: IfNeeded
sideEffects: None
timeoutSeconds: 2
rules: {{- include "webhook.rules" . | nindent 2 }}
{{- end }}
{{- define "webhook.notExempt" -}}
- key: kubernetes.io/metadata.name
  operator: NotIn
  values:
    {{- range .Values.exemptNamespaces }}
    - {{ . }}
    {{- end }}
    - {{ .Release.Namespace }}
- {key: diagon-webhook-exempt, operator: NotIn, values: ["true"]}
{{- end }}
{{- define "webhook.otherNamespaces" -}}
namespaceSelector:
  matchExpressions:
    {{- include "webhook.notExempt" . | nindent 4 }}
    - {key: managed-mldiagnostics-gke, operator: NotIn, values: ["true"]}
{{- end }}
