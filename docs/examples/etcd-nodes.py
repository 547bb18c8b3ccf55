#!/usr/bin/env python3
"""Runs etcd on three hosts of mininet, at the speeds of the vnodes fast, medium and slow.

Prints how long a put takes by the delay of the links and the speed of the leader, and which host
leads after the fast one was stopped.
"""

import base64
import http.client
import json
import statistics
import subprocess
import sys
import time

from mininet.link import TCLink
from mininet.net import Mininet
from mininet.nodelib import LinuxBridge
from mininet.topo import SingleSwitchTopo

VNODES = {"h1": "fast", "h2": "medium", "h3": "slow"}
# Of each link and direction. There are two links between two hosts: a round trip takes four times
# as long.
DELAYS_MS = (0, 50, 5)
# etcd asks for a heartbeat of about the longest round trip, and for ten times as much.
HEARTBEAT_MS, ELECTION_MS = 200, 2000
PUTS = 30


def start(host, hosts):
    """Starts etcd from the shell of a host, so that it is part of the host's vnode."""
    own = f"http://{host.IP()}"
    cluster = ",".join(f"{peer}=http://{peer.IP()}:2380" for peer in hosts)
    host.cmd(
        f"etcd --name {host} --data-dir /tmp/etcd-{host} --initial-cluster {cluster}"
        f" --listen-peer-urls {own}:2380 --initial-advertise-peer-urls {own}:2380"
        f" --listen-client-urls {own}:2379,http://127.0.0.1:2379 --advertise-client-urls {own}:2379"
        f" --heartbeat-interval {HEARTBEAT_MS} --election-timeout {ELECTION_MS}"
        f" > /tmp/etcd-{host}.log 2>&1 &"
    )


def find_members(hosts):
    """The hosts that answer by their number in the cluster, and the leader that each one names."""
    endpoints = {f"{host.IP()}:2379": host for host in hosts}
    words = f"--endpoints {','.join(endpoints)} -w json endpoint status"
    text = hosts[0].cmd(f"etcdctl {words} 2> /dev/null")
    members, leaders = {}, []
    for one in json.loads(text or "[]"):
        members[one["Status"]["header"]["member_id"]] = endpoints[one["Endpoint"]]
        leaders.append(one["Status"].get("leader"))
    return members, leaders


def wait_for_leader(hosts):
    """Waits until all these hosts name the same one of them as the leader."""
    while True:
        members, leaders = find_members(hosts)
        if len(leaders) == len(hosts) and len(set(leaders)) == 1 and leaders[0] in members:
            return members[leaders[0]]
        time.sleep(0.1)


def move_leader(hosts, wanted):
    """Makes a host the leader."""
    while (leader := wait_for_leader(hosts)) != wanted:
        members, _ = find_members(hosts)
        for number, host in members.items():
            if host == wanted:
                leader.cmd(f"etcdctl move-leader {number:x}")


def set_delay(net, delay):
    """Both ends of a link delay what they send."""
    for link in net.links:
        for end in (link.intf1, link.intf2):
            end.config(delay=f"{delay}ms")


def put():
    """Runs on a host: prints the median and the shortest duration of a put in ms."""
    client = http.client.HTTPConnection("127.0.0.1", 2379)
    durations = []
    for number in range(2 * PUTS):
        pair = {"key": b"number", "value": b"%d" % number}
        body = json.dumps({name: base64.b64encode(text).decode() for name, text in pair.items()})
        begin = time.monotonic()
        client.request("POST", "/v3/kv/put", body)
        answer = client.getresponse()
        text = answer.read().decode()
        # During an election puts fail.
        if answer.status == 200:
            durations.append((time.monotonic() - begin) * 1000)
        if len(durations) == PUTS:
            break
    else:
        sys.exit(f"only {len(durations)} of {2 * PUTS} puts succeeded: {text}")
    print(f"{statistics.median(durations):.1f} ms, at least {min(durations):.1f} ms")


def measure(when, leader):
    """The client is on the leader's host: only messages between members take a link."""
    durations = leader.cmd("python3", __file__, "put").strip()
    print(f"{when}, {VNODES[leader.name]} leads: put {durations}", flush=True)


def main():
    net = Mininet(topo=SingleSwitchTopo(3), link=TCLink, switch=LinuxBridge, controller=None)
    net.start()
    hosts = net.hosts
    fast, _, slow = hosts
    for host in hosts:
        words = ["pinfold", "emulate", "attach", VNODES[host.name], "--mininet", host.name]
        subprocess.run(words, check=True)
        start(host, hosts)
    for delay in DELAYS_MS:
        set_delay(net, delay)
        for leader in (fast, slow):
            move_leader(hosts, leader)
            measure(f"links of {delay} ms", leader)
    move_leader(hosts, fast)
    begin = time.monotonic()
    fast.cmd("kill -KILL %1")
    leader = wait_for_leader(hosts[1:])
    print(f"fast is stopped: {VNODES[leader.name]} leads after {time.monotonic() - begin:.1f} s")
    measure("without fast", leader)
    subprocess.run(["pinfold", "emulate", "down"], check=True)
    measure("at full speed", leader)
    for host in hosts:
        host.cmd("kill %1; wait")
    net.stop()


if sys.argv[1:] == ["put"]:
    put()
else:
    main()
