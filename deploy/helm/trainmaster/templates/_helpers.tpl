{{- define "tm.name" -}}
{{- $name := contains "trainmaster" .Release.Name | ternary .Release.Name (printf "%s-trainmaster" .Release.Name) -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tm.labels" -}}
{{ include "tm.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "tm.selector" -}}
app.kubernetes.io/name: trainmaster
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tm.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "tm.secret" -}}
{{ .Values.existingSecret | default (printf "%s-keys" (include "tm.name" .)) }}
{{- end -}}

{{- define "tm.isBundled" -}}
{{- if .Values.bundled.postgresql.enabled -}}true{{- end -}}
{{- end -}}

{{- define "tm.apiHost" -}}
{{ include "tm.name" . }}-api.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* Where a volume is: one of the three first ones, or one of storage.more. */}}
{{- define "tm.whereIs" -}}
{{- $storage := .root.Values.storage -}}
{{- $volumes := has .name (list "home" "output" "data") | ternary $storage $storage.more -}}
{{- toJson (index $volumes .name) -}}
{{- end -}}

{{/* The volumes of jobs: output, data, and those of storage.more. */}}
{{- define "tm.volumeNames" -}}
{{- toJson (concat (list "output" "data") (keys .Values.storage.more | sortAlpha)) -}}
{{- end -}}

{{/* Where the control plane sees a volume: a node's folder under its own path, all others under home. */}}
{{- define "tm.root" -}}
{{- $source := include "tm.whereIs" . | fromJson -}}
{{- if $source.hostPath -}}{{ $source.hostPath }}{{- else -}}/var/lib/trainmaster/{{ .name }}{{- end -}}
{{- end -}}

{{- define "tm.source" -}}
{{- $source := include "tm.whereIs" . | fromJson -}}
{{- if $source.hostPath -}}
hostPath: {path: {{ $source.hostPath | quote }}, type: DirectoryOrCreate}
{{- else if $source.nfs -}}
nfs: {server: {{ $source.nfs.server | quote }}, path: {{ $source.nfs.path | quote }}}
{{- else if $source.claim -}}
persistentVolumeClaim: {claimName: {{ $source.claim | quote }}}
{{- else if and $source.memory (eq .name "home") -}}
emptyDir: {}
{{- else -}}
{{- $key := ternary "" ".more" (has .name (list "home" "output" "data")) -}}
{{- fail (printf "storage%s.%s: say where it is, by hostPath, nfs or claim (see values.yaml)" $key .name) -}}
{{- end -}}
{{- end -}}

{{/* A name of the pod's that clashes with none of the chart's own. */}}
{{- define "tm.podVolume" -}}
{{- if has . (list "home" "output" "data") -}}{{ . }}{{- else -}}more-{{ . }}{{- end -}}
{{- end -}}

{{- define "tm.volumes" -}}
- name: tmp
  emptyDir: {}
{{- range $name := prepend (include "tm.volumeNames" . | fromJsonArray) "home" }}
- name: {{ include "tm.podVolume" $name }}
  {{- include "tm.source" (dict "root" $ "name" $name) | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tm.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /var/lib/trainmaster}
{{- range $name := include "tm.volumeNames" . | fromJsonArray }}
- {name: {{ include "tm.podVolume" $name }}, mountPath: {{ include "tm.root" (dict "root" $ "name" $name) }}}
{{- end }}
{{- end -}}

{{/* The first volumes, as the platform registers them. */}}
{{- define "tm.firstVolumes" -}}
{{- $found := list -}}
{{- range $name := include "tm.volumeNames" . | fromJsonArray -}}
{{- $source := include "tm.whereIs" (dict "root" $ "name" $name) | fromJson -}}
{{- $root := include "tm.root" (dict "root" $ "name" $name) -}}
{{- if $source.hostPath -}}
{{- $found = append $found (dict "name" $name "kind" "local" "root" $root) -}}
{{- else if $source.nfs -}}
{{- $config := dict "server" $source.nfs.server "path" $source.nfs.path -}}
{{- $found = append $found (dict "name" $name "kind" "nfs" "root" $root "config" $config) -}}
{{- else if $source.claim -}}
{{- $found = append $found (dict "name" $name "kind" "pvc" "root" $root "config" (dict "claim" $source.claim)) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* What marks this release's objects on the cluster: of all releases in all namespaces none has the same. */}}
{{- define "tm.instance" -}}
{{- if .Values.instance -}}{{ .Values.instance }}{{- else -}}
{{- $name := printf "%s-%s" .Release.Namespace (.Release.Name | replace "." "-") | trunc 33 | trimSuffix "-" -}}
{{ $name }}-{{ printf "%s/%s" .Release.Namespace .Release.Name | sha256sum | trunc 6 }}
{{- end -}}
{{- end -}}

{{/* The nodes' folders that jobs may mount: those of the volumes. */}}
{{- define "tm.hostPaths" -}}
{{- $found := list -}}
{{- range $name := include "tm.volumeNames" . | fromJsonArray -}}
{{- with (include "tm.whereIs" (dict "root" $ "name" $name) | fromJson).hostPath -}}
{{- $found = append $found . -}}
{{- end -}}
{{- end -}}
{{- join ":" $found -}}
{{- end -}}

{{- define "tm.env" -}}
{{- if eq .Values.jobs.namespace .Release.Namespace -}}
{{- fail "jobs.namespace: name another one than the release's, for the platform's keys lie there" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.url) -}}
{{- fail "url: say how people reach the API through the ingress, such as https://train.example.com" -}}
{{- end -}}
{{- $secret := include "tm.secret" . -}}
- {name: TRAINMASTER_DATABASE_URL, valueFrom: {secretKeyRef: {name: {{ $secret }}, key: database-url}}}
- {name: TRAINMASTER_BROKER_URL, valueFrom: {secretKeyRef: {name: {{ $secret }}, key: broker-url}}}
- {name: TRAINMASTER_SECRET_KEY, valueFrom: {secretKeyRef: {name: {{ $secret }}, key: secret-key}}}
- name: TRAINMASTER_METRICS_TOKEN
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: metrics-token, optional: true}}
- name: TRAINMASTER_OIDC_PROVIDERS
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: oidc-providers, optional: true}}
- {name: TRAINMASTER_HOME, value: /var/lib/trainmaster}
- {name: TRAINMASTER_EXECUTOR, value: kubernetes}
- {name: TRAINMASTER_INSTANCE, value: {{ include "tm.instance" . | quote }}}
{{- $host := include "tm.apiHost" . }}
{{- $port := .Values.api.service.port }}
{{- $replicaPort := ternary 8765 $port .Values.api.service.headless }}
- {name: TRAINMASTER_API_URL, value: {{ .Values.url | default (printf "http://%s:%v" $host $port) | quote }}}
- {name: TRAINMASTER_REPLICA_API_URL, value: {{ printf "http://%s:%v" $host $replicaPort | quote }}}
- {name: TRAINMASTER_RUNTIME_IMAGE, value: {{ .Values.jobs.runtimeImage | quote }}}
- {name: TRAINMASTER_DEFAULT_IMAGE, value: {{ .Values.jobs.defaultImage | quote }}}
- {name: TRAINMASTER_IMAGE_PULL_SECRETS, value: {{ join "," .Values.jobs.pullSecrets | quote }}}
- {name: TRAINMASTER_KUBERNETES_NAMESPACE, value: {{ .Values.jobs.namespace | quote }}}
- {name: TRAINMASTER_KUBERNETES_NAMESPACE_PER_PROJECT, value: {{ .Values.jobs.namespacePerProject | quote }}}
- {name: TRAINMASTER_KUBERNETES_NODE_SELECTOR, value: {{ .Values.jobs.nodeSelector | quote }}}
- {name: TRAINMASTER_KUBERNETES_TOLERATIONS, value: {{ .Values.jobs.tolerations | quote }}}
- {name: TRAINMASTER_KUBERNETES_EGRESS, value: {{ .Values.jobs.egress | quote }}}
- {name: TRAINMASTER_KUBERNETES_NETWORK_POLICY, value: {{ .Values.jobs.networkPolicy | quote }}}
- {name: TRAINMASTER_REGION, value: {{ .Values.jobs.region | quote }}}
- {name: TRAINMASTER_FIRST_VOLUMES, value: {{ include "tm.firstVolumes" . | quote }}}
{{- if not (hasKey .Values.env "TRAINMASTER_HOST_PATHS") }}
- {name: TRAINMASTER_HOST_PATHS, value: {{ include "tm.hostPaths" . | quote }}}
{{- end }}
- {name: TRAINMASTER_PROBE_HOST, value: "0.0.0.0"}
- {name: TRAINMASTER_PROBE_PORT, value: "8770"}
- {name: TRAINMASTER_LOG_LEVEL, value: {{ .Values.logLevel | quote }}}
{{- range $name, $value := .Values.env }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- end -}}

{{- define "tm.priorityClass" -}}
{{ .Values.priorityClass.name | default (printf "%s-%s" .Release.Namespace (include "tm.name" .)) }}
{{- end -}}

{{- define "tm.podSecurity" -}}
priorityClassName: {{ include "tm.priorityClass" . }}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tm.containerSecurity" -}}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}

{{- define "tm.pullSecrets" -}}
{{- with .Values.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Deployment of one part: dict root part args probes(bool api) */}}
{{- define "tm.deployment" -}}
{{- $root := .root -}}
{{- $part := index $root.Values .part -}}
{{- $name := printf "%s-%s" (include "tm.name" $root) .part -}}
{{- if and $root.Values.storage.home.memory (gt (int $part.replicas) 1) (ne .part "beat") -}}
{{- fail (printf "%s.replicas: set it to 1, for storage.home.memory is not shared" .part) -}}
{{- end -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels:
    {{- include "tm.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .part }}
spec:
  replicas: {{ $part.replicas }}
  strategy:
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  selector:
    matchLabels:
      {{- include "tm.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .part }}
  template:
    metadata:
      labels:
        {{- include "tm.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .part }}
      annotations:
        # Pods start anew when another Secret is named. Keys changed inside it are read after `kubectl rollout restart`.
        checksum/keys: {{ include "tm.secret" $root | sha256sum | trunc 16 | quote }}
    spec:
      {{- if eq .part "scheduler" }}
      serviceAccountName: {{ include "tm.name" $root }}
      {{- else }}
      automountServiceAccountToken: false
      {{- end }}
      enableServiceLinks: false
      {{- include "tm.pullSecrets" $root | nindent 6 }}
      {{- include "tm.podSecurity" $root | nindent 6 }}
      # A process that is the first of its container ignores a TERM that comes before it has a handler.
      shareProcessNamespace: true
      # What it is doing is finished first: an API serves on while load balancers forget it.
      terminationGracePeriodSeconds: 45
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "tm.selector" $root | nindent 14 }}
              app.kubernetes.io/component: {{ .part }}
      {{- with $part.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $part.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $part.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .part }}
          image: {{ include "tm.image" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args: {{ toJson .args }}
          {{- include "tm.containerSecurity" $root | nindent 10 }}
          env:
            {{- include "tm.env" $root | nindent 12 }}
          ports:
            - {name: http, protocol: TCP, containerPort: {{ .port }}}
          # Live: the process answers, whatever the database does. Ready: requests can be served.
          startupProbe:
            {httpGet: {path: {{ .live }}, port: http}, periodSeconds: 2, timeoutSeconds: 5, failureThreshold: 60}
          livenessProbe:
            {httpGet: {path: {{ .live }}, port: http}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
          readinessProbe:
            {httpGet: {path: {{ .ready }}, port: http}, periodSeconds: 3, timeoutSeconds: 5, failureThreshold: 2}
          resources: {{- toYaml $part.resources | nindent 12 }}
          volumeMounts:
            {{- if eq .part "beat" }}
            - {name: tmp, mountPath: /tmp}
            {{- else }}
            {{- include "tm.mounts" $root | nindent 12 }}
            {{- end }}
      volumes:
        {{- if eq .part "beat" }}
        - name: tmp
          emptyDir: {}
        {{- else }}
        {{- include "tm.volumes" $root | nindent 8 }}
        {{- end }}
{{- if and $root.Values.podDisruptionBudgets (gt (int $part.replicas) 1) }}
---
apiVersion: {{ if $root.Capabilities.APIVersions.Has "policy/v1" }}policy/v1{{ else }}policy/v1beta1{{ end }}
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels:
    {{- include "tm.labels" $root | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "tm.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .part }}
{{- end }}
{{- end -}}
