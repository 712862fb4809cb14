"""A fleet as systemd units, one binary per machine, with as few rights as possible."""

from .service_configs import Layout
from .settings import DeploySettings
from .yaml_files import MADE, dump

ETC = "/etc/parlmesh"
STATE = "/var/lib/parlmesh"
# A static user, because a dynamic one could not read keys that are renewed while it runs.
SYSUSERS = 'u parlmesh - "parlmesh services" /var/lib/parlmesh\n'
UNIT = """\
{made}[Unit]
Description=parlmesh {service}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
Type=exec
User=parlmesh
Group=parlmesh
Environment=PATH=/opt/parlmesh/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
ExecStart=/opt/parlmesh/bin/parlmesh-{service} --config {etc}/{service}.yaml
Restart=on-failure
RestartSec=2
# A restart does not help against a bad configuration (2) or bad security files (4).
RestartPreventExitStatus=2 4
TimeoutStopSec=30
LimitNOFILE=65536
TasksMax=512

StateDirectory=parlmesh
StateDirectoryMode=0750
WorkingDirectory={state}
ReadOnlyPaths={etc} /opt/parlmesh
UMask=0027
CapabilityBoundingSet=
AmbientCapabilities=
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
ProtectProc=invisible
ProcSubset=pid
PrivateTmp=yes
PrivateDevices=yes
PrivateUsers=yes
PrivateIPC=yes
PrivateMounts=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
LockPersonality=yes
RemoveIPC=yes
DevicePolicy=closed
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def files(settings: DeploySettings) -> dict[str, str]:
    """The units, their configuration files, and their user."""
    layout = Layout(
        settings,
        scheduler=settings.scheduler_host,
        learner=settings.learner_host,
        relay=settings.relay_host,
        data=STATE,
        certificates=f"{ETC}/certificates",
        open_metrics=False,
    )
    actor = layout.actor()
    if settings.secure:
        # The same path on every machine, each with its own certificate.
        node = f"{ETC}/certificates/node"
        actor["security"] |= {"certificate": f"{node}.crt", "key": f"{node}.key"}
    configurations = {
        "scheduler": layout.scheduler(),
        "learner": layout.learner(),
        "relay": layout.relay(),
        "actor": actor,
    }
    found = {f"{service}.yaml": dump(content) for service, content in configurations.items()}
    for service in configurations:
        found[f"parlmesh-{service}.service"] = UNIT.format(made=MADE, service=service, etc=ETC, state=STATE)
    found["parlmesh.sysusers.conf"] = MADE + SYSUSERS
    return found
