"""A NIXL initiator, as nixl_peer.py has it, scripts/nixl-target and the programs in bin/."""

import hashlib
import importlib.machinery
import importlib.util
import itertools
import json
import os
import pickle
import random
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import zmq

import nixl_peer
import peers
from test_peers import BIN, PATIENCE, SEED, Case, Program, endpoint

ROOT = BIN.parent
SCRIPT = ROOT / "scripts" / "nixl-target"
MIB = 1 << 20
LLAMA = 32 * MIB  # Llama-3.1-8B: 256 tokens


class NIXL(Case):
    def setUp(self):
        self.random = random.Random(SEED)

    def receiver(self, at, slots, chunk, *flags):
        return self.program("pd-recv", "--listen", at, "--monitor", "none", "--chunk-size", chunk,
                            "--buffer-size", slots * chunk, *flags)

    def target(self, at, init, *flags):
        return self.program(sys.executable, SCRIPT, "--to", at, "--listen", init, *flags)

    def initiator(self, chunk, chunks):
        return self.keep(nixl_peer.Initiator(chunk, chunks))

    def pair(self, slots, chunk, *flags):
        """pd-recv and a nixl-target that serves."""
        at, init = endpoint(), endpoint()
        recv, target = self.receiver(at, slots, chunk, *flags), self.target(at, init)
        listening = json.loads(target.line(lambda l: "listening" in l))
        self.assertEqual((listening["endpoint"], listening["slots"], listening["slot_size"]), (init, slots, chunk))
        return at, init, recv, target

    def deliver(self, initiator, sender, notifier, req_id, chunks, batch=2):
        """What LMCache's sender does with a request: for each batch it asks for
        slots and writes them; when all are written it tells the proxy. What it
        sent."""
        size = initiator.chunk
        sent = self.random.randbytes(chunks * size)
        for first in range(0, chunks, batch):
            own = range(first, min(first + batch, chunks))
            answer = sender.alloc(req_id, chunks, [f"{req_id}-{i}" for i in own], last=own[-1] == chunks - 1, size=size)
            self.assertNotIn(-1, answer.remote_indexes)
            self.assertEqual(len(answer.remote_indexes), len(own), answer)
            initiator.staging[own[0] * size:(own[-1] + 1) * size] = sent[own[0] * size:(own[-1] + 1) * size]
            initiator.write(list(own), answer.remote_indexes)
        notifier.ready(req_id)
        return sent

    def take(self, at, req_id):
        p = subprocess.run([BIN / "pd-recv", "take", at, req_id], capture_output=True, timeout=PATIENCE)
        self.assertEqual(p.returncode, 0, p.stderr.decode())
        return p.stdout

    def same(self, got, sent, req_id):
        self.assertEqual((len(got), hashlib.sha256(got).hexdigest()), (len(sent), hashlib.sha256(sent).hexdigest()), req_id)

    def test_every_order_of_start(self):
        chunk = 64 << 10
        for order in itertools.permutations(("recv", "target", "sender")):
            with self.subTest(order=order):
                at, init, told = endpoint(), endpoint(), endpoint()
                proxy = self.program("pd-proxy", "--listen", told, "-n", 1)

                def sending():
                    sender, notifier = self.keep(peers.Sender(at, "lmcache-0")), self.keep(peers.Notifier(told))
                    sent, failed = [], []

                    def work():
                        try:
                            initiator = self.initiator(chunk, 5)
                            initiator.connect(init)
                            sent.append(self.deliver(initiator, sender, notifier, "A", 5))
                        except BaseException as e:
                            failed.append(e)
                    thread = threading.Thread(target=work, daemon=True)
                    thread.start()
                    return thread, sent, failed
                up = self.in_order(order, {
                    "recv": lambda: self.receiver(at, 8, chunk),
                    "target": lambda: self.target(at, init),
                    "sender": sending,
                })
                thread, sent, failed = up["sender"]
                thread.join(PATIENCE)
                self.assertFalse(thread.is_alive() or failed, failed)
                self.assertEqual(proxy.end(), 0, proxy.stderr())
                self.assertEqual(proxy.lines, ["A"])
                self.same(self.take(at, "A"), sent[0], "A")
                self.assertEqual(self.stat(at)["slots"]["free"], 8)

    def test_sizes(self):
        """A real one, and one that is no whole number of pages."""
        for chunk, chunks in ((LLAMA, 3), (61_441, 7)):
            with self.subTest(chunk=chunk):
                told = endpoint()
                proxy = self.program("pd-proxy", "--listen", told, "-n", 1)
                at, init, _, _ = self.pair(chunks, chunk)
                initiator = self.initiator(chunk, chunks)
                initiator.connect(init)
                sent = self.deliver(initiator, self.keep(peers.Sender(at, "lmcache-0")), self.keep(peers.Notifier(told)), "A", chunks)
                self.assertEqual(proxy.end(), 0, proxy.stderr())
                self.same(self.take(at, "A"), sent, "A")

    def test_readme(self):
        """Its commands, with other ports, and a request of the size it speaks of."""
        blocks = re.findall(r"(?ms)^```bash\n(.*?)^```", (ROOT / "README.md").read_text())
        self.assertEqual(len(blocks), 1)
        at, init, told = endpoint(), endpoint(), endpoint()
        script = blocks[0]
        for default, other in ((":7600", at), (":7610", init), (":7700", told)):
            script = script.replace("tcp://127.0.0.1" + default, other)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        env = {**os.environ, "PATH": f"{BIN}:{SCRIPT.parent}:{os.environ['PATH']}", "PD_RECV_LISTEN": at,
               "PD_RECV_MONITOR": "none", "PD_PROXY_LISTEN": told}
        shell = self.keep(Program("/bin/bash", "-euc", f"trap 'kill $(jobs -p)' EXIT TERM\n{script}\nwait", cwd=folder.name, env=env))
        shell.line(lambda l: "listening" in l)
        initiator = self.initiator(LLAMA, 2)
        initiator.connect(init)
        notifier = peers.Notifier(told)
        sent = self.deliver(initiator, self.keep(peers.Sender(at, "lmcache-0")), notifier, "A", 2)
        notifier.close()
        self.same(self.take(at, "A"), sent, "A")

    def test_senders_that_wait_for_each_other(self):
        """Three senders, a buffer for one request and a half, and a decoder that
        takes what the proxy calls ready."""
        chunk, chunks, requests = 256 << 10, 4, 4
        told = endpoint()
        proxy = self.program("pd-proxy", "--listen", told, "-n", 3 * requests)
        at, init, recv, _ = self.pair(6, chunk)
        sent, failed = {}, []

        def work(n):
            try:
                initiator = self.initiator(chunk, chunks)
                initiator.connect(init)
                sender, notifier = self.keep(peers.Sender(at, f"lmcache-{n}")), self.keep(peers.Notifier(told))
                for i in range(requests):
                    req_id = f"{n}-{i}"
                    sent[req_id] = self.deliver(initiator, sender, notifier, req_id, chunks)
            except BaseException as e:
                failed.append(e)
        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(3)]
        for t in threads:
            t.start()
        taken = {}
        while len(taken) < 3 * requests:
            req_id = proxy.line(lambda l: l not in taken)
            taken[req_id] = self.take(at, req_id)
        for t in threads:
            t.join(PATIENCE)
        self.assertFalse(failed, failed)
        self.assertEqual(proxy.end(), 0, proxy.stderr())
        for req_id, got in taken.items():
            self.same(got, sent[req_id], req_id)
        self.assertTrue(any("queued" in l for l in recv.lines), "nobody had to wait")
        self.assertEqual(self.stat(at)["slots"]["free"], 6)

    def test_receiver_restarted(self):
        """Who writes into what is gone is told so. All start anew."""
        chunk = 64 << 10
        at, init, recv, target = self.pair(4, chunk)
        initiator = self.initiator(chunk, 4)
        initiator.connect(init)
        initiator.write([0], [0])
        recv.process.kill()
        self.assertEqual(target.end(), 1)
        self.assertIn("pd-recv is gone", target.stderr())
        recv.close()
        self.receiver(at, 4, chunk)
        told = endpoint()
        self.program("pd-proxy", "--listen", told)
        sender, notifier = self.keep(peers.Sender(at, "lmcache-0")), self.keep(peers.Notifier(told))
        slots = sender.alloc("A", 1, ["a0"], size=chunk).remote_indexes
        with self.assertRaises(Exception) as failed:
            initiator.write([0], slots)
        self.assertNotIsInstance(failed.exception, TimeoutError)
        sender.cancel("A", ["a0"])

        self.target(at, init).line(lambda l: "listening" in l)
        anew = self.initiator(chunk, 4)
        anew.connect(init)
        sent = self.deliver(anew, sender, notifier, "B", 4)
        self.same(self.take(at, "B"), sent, "B")

    def test_slots_that_moved_end_it(self):
        """A sender of ours, silent in the middle of a write, has its slots taken
        away: they have other memory then, which LMCache cannot be told of."""
        module = load(SCRIPT)
        at, _, recv, target = self.pair(4, 4096, "--lease", "300ms")
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)
        other = module.Receiver(context, at)
        self.addCleanup(other.socket.close)
        other.socket.setsockopt(zmq.RCVTIMEO, peers.PATIENCE_MS)
        other.ask()
        attached = other.answer()
        memory = module.Memory(attached)
        self.addCleanup(memory.connection.close)
        other.socket.send_multipart([b"", peers.encode(peers.AllocRequest(["a0"], peers.BINARY, [4096], "uint8", 4096, "A", False, 2))])
        self.assertEqual(len(peers.decode(other.socket.recv_multipart()[-1]).remote_indexes), 1)
        recv.event("expired", "A")
        self.assertEqual(target.end(), 1)
        self.assertIn("moved slots to other memory", target.stderr())

    def test_what_strangers_say(self):
        """It is answered, and a pickle is not run."""
        at, init, _, target = self.pair(4, 4096)
        mark = Path(tempfile.mkdtemp()) / "mark"

        class Code:
            def __reduce__(self):
                return (os.mkdir, (str(mark),))
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)

        def ask(payload):
            with context.socket(zmq.REQ) as s:
                s.setsockopt(zmq.RCVTIMEO, peers.PATIENCE_MS)
                s.connect(init)
                s.send(payload)
                return s.recv()
        evil = nixl_peer.NixlMemRegRequest(b"x", "x", pickle.dumps(Code()))
        for payload in (b"", b"\xc1", peers.encode(peers.ProxyNotif("A")), os.urandom(100), b"x" * MIB):
            self.assertEqual(ask(payload), b"")
        ask(peers.encode(nixl_peer.NixlInitRequest(os.urandom(100))))
        ask(peers.encode(evil))
        self.assertFalse(mark.exists())
        initiator = self.initiator(4096, 1)
        initiator.connect(init)
        initiator.write([0], [3])
        target.process.terminate()
        self.assertEqual(target.end(), 0, target.stderr())
        self.assertEqual(len(target.lines), 1, "stdout is data")

    def test_chunks_of_another_size_are_not_written(self):
        _, init, _, _ = self.pair(4, 4096)
        initiator = self.initiator(8192, 1)
        initiator.connect(init)
        with self.assertRaises(Exception) as failed:
            initiator.write([0], [0])
        self.assertNotIsInstance(failed.exception, TimeoutError)

    def test_it_says_why_it_cannot_start(self):
        at = endpoint()
        p = self.target(at, endpoint(), "--timeout", "0.3")
        self.assertEqual(p.end(), 1)
        self.assertIn("is pd-recv running there?", p.stderr())
        self.receiver(at, 4, 4096)
        p = self.target(at, at)
        self.assertEqual(p.end(), 1)
        self.assertIn(at, p.stderr())


def load(script):
    """A program as a module."""
    loader = importlib.machinery.SourceFileLoader(script.name.replace("-", "_"), str(script))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    sys.stdout.flush()
    os._exit(not result.wasSuccessful())  # nixl 1.5.1 faults where Python ends after an agent was made
