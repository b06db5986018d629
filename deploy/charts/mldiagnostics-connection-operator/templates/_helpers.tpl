{{- define "operator.selector" -}}
app.kubernetes.io/name: mldiagnostics-connection-operator
{{- end }}
{{- define "operator.metadata" -}}
namespace: {{ .Release.Namespace }}
labels: {{- include "operator.labels" . | nindent 2 }}
{{- end }}
{{- define "operator.labels" -}}
app.kubernetes.io/name: mldiagnostics-connection-operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: mldiagnostics
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "operator.rules" -}}
- {apiGroups: [diagon.gke.io], resources: [mldiagnosticsconnections], verbs: [list, watch, patch, delete]}
- {apiGroups: [diagon.gke.io], resources: [mldiagnosticsconnections/status], verbs: [patch]}
# A pod's address is read from the pod itself, and a namespace says which others may capture its pods.
- {apiGroups: [""], resources: [namespaces, pods], verbs: [get]}
{{- if .Values.recordFacts }}
- {apiGroups: [""], resources: [pods, events], verbs: [list, watch]}
{{- end }}
{{- end }}
