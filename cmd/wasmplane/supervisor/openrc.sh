#!/sbin/openrc-run
{{.Mark}}description="wasmplane: a Kubernetes-compatible {{.What}}"
# It is started anew when it fails, however often.
supervisor="supervise-daemon"
command="{{.Program}}"
command_args="{{.Arguments}}"
respawn_delay=2
respawn_max=0
# The control plane stops; containerd and the pods keep running, and the next start carries on
# with them. `wasmplane down` ends them.
rc_cgroup_cleanup="no"
retry="SIGTERM/60"
rc_ulimit="-n 1048576 -u unlimited -c unlimited"
output_log="/var/log/{{.Name}}.log"
error_log="/var/log/{{.Name}}.log"

depend() {
	need net localmount
	use dns logger
	after firewall bootmisc
}
