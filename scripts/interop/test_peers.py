"""LMCache's peers, as peers.py has them, against the programs in bin/."""

import itertools
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import msgspec

import peers

HERE = Path(__file__).resolve().parent
BIN = HERE.parent.parent / "bin"
PATIENCE = 30
CHUNK = 4096
SEED = int(os.environ.get("INTEROP_SEED", "1"))
BREAK = os.environ.get("INTEROP_BREAK", "0")
MESSAGES = 10_000


def endpoint():
    """A free port, below those that the system gives to connections: a peer that
    connects before anybody is bound would else take it now and then."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        return f"tcp://127.0.0.1:{port}"


class Program:
    """One of ours. Its lines of stdout are kept, and can be waited for."""

    def __init__(self, name, *args, **how):
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [BIN / name, *map(str, args)], stdout=subprocess.PIPE, stderr=self.errors, stdin=subprocess.DEVNULL, text=True,
            **how)
        self.lines = []
        self.over = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def line(self, wanted):
        """The first line for which wanted says so."""
        with self.changed:
            found = lambda: next((l for l in self.lines if wanted(l)), None)
            self.changed.wait_for(lambda: found() is not None or self.over, PATIENCE)
            if found() is None:
                raise AssertionError(f"{self.name}: no such line in {self.lines}; stderr: {self.stderr()}")
            return found()

    def event(self, event, req_id):
        def wanted(line):
            e = json.loads(line)
            return e["event"] == event and e.get("req_id") == req_id
        return json.loads(self.line(wanted))

    def stderr(self):
        self.errors.seek(0)
        return self.errors.read()

    def end(self):
        """Waits for it; its exit code."""
        code = self.process.wait(PATIENCE)
        self.thread.join(PATIENCE)
        return code

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.thread.join(PATIENCE)
        self.process.stdout.close()
        self.errors.close()


class Case(unittest.TestCase):
    def keep(self, thing):
        self.addCleanup(thing.close)
        return thing

    def program(self, *args):
        return self.keep(Program(*args))

    def recv(self, at, slots=16, *flags):
        return self.program("pd-recv", "--listen", at, "--monitor", "none", "--chunk-size", CHUNK,
                            "--buffer-size", slots * CHUNK, *flags)

    def manifest(self, *requests):
        """A file of requests: (id, chunks)."""
        f = tempfile.NamedTemporaryFile("w", suffix=".manifest")
        self.addCleanup(f.close)
        for req_id, chunks in requests:
            line = {"req_id": req_id, "total_chunks": chunks, "last": True,
                    "chunks": [{"key": f"{req_id}-{i}", "length": CHUNK} for i in range(chunks)]}
            f.write(json.dumps(line) + "\n")
        f.flush()
        return f.name

    def stat(self, at):
        p = self.program("pd-recv", "stat", at)
        self.assertEqual(p.end(), 0, p.stderr())
        return json.loads(p.lines[0])

    def in_order(self, order, starts):
        """Starts what starts names in this order; what each start returned."""
        return {name: starts[name]() for name in order}


class Sender(Case):
    """LMCache's sender, our pd-recv and pd-proxy."""

    def send(self, sender, notifier):
        first = sender.alloc("A", 3, ["a0", "a1"])
        last = sender.alloc("A", 3, ["a2"], last=True)
        self.assertEqual(len(first.remote_indexes), 2, first)
        self.assertEqual(len(set(first.remote_indexes + last.remote_indexes)), 3)
        self.assertEqual(first.already_sent_indexes + last.already_sent_indexes, [])
        notifier.ready("A")

    def test_every_order_of_start(self):
        for order in itertools.permutations(("recv", "proxy", "sender")):
            with self.subTest(order=order):
                at, told = endpoint(), endpoint()

                def sending():
                    sender, notifier = self.keep(peers.Sender(at, "lmcache-0")), self.keep(peers.Notifier(told))
                    failed = []

                    def work():
                        try:
                            self.send(sender, notifier)
                        except BaseException as e:
                            failed.append(e)
                    thread = threading.Thread(target=work, daemon=True)
                    thread.start()
                    return thread, failed
                up = self.in_order(order, {
                    "recv": lambda: self.recv(at),
                    "proxy": lambda: self.program("pd-proxy", "--listen", told, "-n", 1),
                    "sender": sending,
                })
                thread, failed = up["sender"]
                thread.join(PATIENCE)
                self.assertFalse(thread.is_alive() or failed, failed)
                self.assertEqual(up["proxy"].end(), 0, up["proxy"].stderr())
                self.assertEqual(up["proxy"].lines, ["A"])
                self.assertEqual(up["recv"].event("ready", "A")["chunks"], 3)
                take = self.program("pd-recv", "take", "-o", "/dev/null", at, "A")
                self.assertEqual(take.end(), 0, take.stderr())
                self.assertEqual(self.stat(at)["slots"]["free"], 16)

    def test_reserving_without_keys(self):
        at = endpoint()
        self.recv(at, 8)
        sender = self.keep(peers.Sender(at, "lmcache-0"))
        self.assertEqual(sender.alloc("A", 6, []).remote_indexes, [])
        self.assertEqual(self.stat(at)["slots"]["promised"], 6)
        self.assertEqual(len(sender.alloc("A", 6, [f"a{i}" for i in range(6)], last=True).remote_indexes), 6)

    def test_cancel_admits_who_waits(self):
        at = endpoint()
        recv = self.recv(at, 8)
        a, b = self.keep(peers.Sender(at, "lmcache-a")), self.keep(peers.Sender(at, "lmcache-b"))
        a.alloc("A", 6, ["a0"])
        answers = []
        waits = threading.Thread(target=lambda: answers.append(b.alloc("B", 6, ["b0"])), daemon=True)
        waits.start()
        recv.event("queued", "B")
        ended = a.cancel("A", ["a0"])
        self.assertEqual((ended.remote_indexes, ended.already_sent_indexes), ([], []))
        waits.join(PATIENCE)
        self.assertEqual(len(answers[0].remote_indexes), 1)
        b.cancel("B")
        b.cancel("no such request")
        self.assertEqual(self.stat(at)["slots"]["free"], 8)

    def test_refusals_are_minus_one(self):
        at = endpoint()
        recv = self.recv(at, 4)
        sender = self.keep(peers.Sender(at, "lmcache-0"))
        self.assertEqual(sender.alloc("A", 5, ["a0", "a1"]).remote_indexes, [-1, -1])
        self.assertEqual(recv.event("rejected", "A")["code"], "too_large")
        self.assertEqual(sender.alloc("B", 0, ["b0"]).remote_indexes, [-1])
        self.assertEqual(recv.event("rejected", "B")["code"], "no_total")
        self.assertEqual(self.stat(at)["slots"]["free"], 4)

    def test_admission_timeout(self):
        at = endpoint()
        recv = self.recv(at, 4, "--admit-timeout", "100ms")
        a, b = self.keep(peers.Sender(at, "lmcache-a")), self.keep(peers.Sender(at, "lmcache-b"))
        a.alloc("A", 4, ["a0"])
        self.assertEqual(b.alloc("B", 4, ["b0"]).remote_indexes, [-1])
        recv.event("timed_out", "B")

    def test_restarted_with_its_identity(self):
        at = endpoint()
        self.recv(at)
        old = self.keep(peers.Sender(at, "lmcache-0"))
        old.alloc("A", 2, ["a0"])
        new = self.keep(peers.Sender(at, "lmcache-0"))
        self.assertEqual(len(new.alloc("B", 1, ["b0"], last=True).remote_indexes), 1)

    def test_a_silent_one_expires(self):
        at = endpoint()
        recv = self.recv(at, 4, "--legacy-lease", "200ms")
        self.keep(peers.Sender(at, "lmcache-0")).alloc("A", 4, ["a0"])
        recv.event("expired", "A")
        self.assertEqual(self.stat(at)["slots"]["free"], 4)


class Receiver(Case):
    """LMCache's receiver knows no attach: what is ours must say so."""

    def fails(self, order):
        at = endpoint()
        up = self.in_order(order, {
            "receiver": lambda: self.keep(peers.Receiver(at)),
            "send": lambda: self.program("pd-send", "--to", at, "--timeout", "10s", self.manifest(("A", 2))),
        })
        self.assertEqual(up["send"].end(), 1)
        result = json.loads(up["send"].lines[0])
        self.assertEqual(result["status"], "failed")
        self.assertIn("LMCache", result["error"])
        self.assertIn("pd-recv", result["error"])
        self.assertTrue(up["receiver"].wait(lambda: up["receiver"].unknown))
        self.assertIn("AttachRequest", up["receiver"].unknown[0])
        self.assertIsNone(up["receiver"].died)
        self.assertEqual(len(up["receiver"].free), 16, "slots are lost")

    def test_pd_send_fails_in_every_order_of_start(self):
        for order in itertools.permutations(("receiver", "send")):
            with self.subTest(order=order):
                self.fails(order)

    def test_questions_fail(self):
        at = endpoint()
        self.keep(peers.Receiver(at))
        for words in (("stat", "--timeout", "500ms", at), ("take", "--timeout", "500ms", at, "A"),
                      ("drop", "--timeout", "500ms", at, "A")):
            with self.subTest(words=words):
                p = self.program("pd-recv", *words)
                self.assertEqual(p.end(), 1)
                self.assertIn("is pd-recv running there?", p.stderr())


class Proxy(Case):
    """LMCache's proxy dies of a message that it does not know."""

    def test_every_order_of_start(self):
        for order in itertools.permutations(("recv", "proxy", "send")):
            with self.subTest(order=order):
                at, told = endpoint(), endpoint()
                up = self.in_order(order, {
                    "recv": lambda: self.recv(at, 4),
                    "proxy": lambda: self.keep(peers.Proxy(told)),
                    "send": lambda: self.program("pd-send", "--to", at, "--proxy", told, "--notify", "ready",
                                                 self.manifest(("large", 5), ("A", 3))),
                })
                self.assertEqual(up["send"].end(), 1, up["send"].stderr())  # large is too large
                proxy = up["proxy"]
                self.assertTrue(proxy.wait(lambda: proxy.ids or proxy.died))
                self.assertIsNone(proxy.died)
                self.assertEqual(proxy.ids, ["A"])
                up["recv"].event("ready", "A")

    def test_failures_would_kill_it(self):
        at, told = endpoint(), endpoint()
        self.recv(at, 4)
        proxy = self.keep(peers.Proxy(told))
        send = self.program("pd-send", "--to", at, "--proxy", told, self.manifest(("large", 5)))
        self.assertEqual(send.end(), 1)
        self.assertTrue(proxy.wait(lambda: proxy.died))
        self.assertIsInstance(proxy.died, msgspec.ValidationError)
        self.assertIn("FailNotif", str(proxy.died))


class Bytes(Case):
    """wire writes what msgspec writes, and both read the same in it."""

    def check(self, *args, stdin=None):
        p = subprocess.run([BIN / "wirecheck", "--break", BREAK, *args], input=stdin, capture_output=True, text=True,
                           timeout=PATIENCE)
        self.assertEqual(p.returncode, 0, p.stderr)
        lines = p.stdout.splitlines()
        self.assertEqual(len(lines), MESSAGES)
        return [line.split(" ", 1) for line in lines]

    def test_go_reads_and_writes_msgspec(self):
        make = Random(SEED)
        ours = [make.message() for _ in range(MESSAGES)]
        theirs = self.check("echo", stdin="".join(peers.encode(m).hex() + "\n" for m in ours))
        for n, (message, (payload, fields)) in enumerate(zip(ours, theirs), 1):
            where = f"message {n} of seed {SEED}: {message}"
            self.assertEqual(payload, peers.encode(message).hex(), where)
            self.assertEqual(json.loads(fields), as_json(message), where)

    def test_msgspec_reads_and_writes_go(self):
        for n, (payload, fields) in enumerate(self.check("make", str(SEED), str(MESSAGES)), 1):
            where = f"message {n} of seed {SEED}: {payload} {fields}"
            try:
                message = peers.decode(bytes.fromhex(payload))
            except (msgspec.DecodeError, UnicodeDecodeError) as e:
                self.fail(f"{where}: {e}")
            self.assertEqual(as_json(message), json.loads(fields), where)
            self.assertEqual(peers.encode(message).hex(), payload, where)

    @unittest.skipUnless(BREAK == "0", "a byte is broken on purpose")
    def test_a_broken_byte_is_found(self):
        for test in ("test_go_reads_and_writes_msgspec", "test_msgspec_reads_and_writes_go"):
            with self.subTest(test=test):
                p = subprocess.run([sys.executable, __file__, f"Bytes.{test}"], capture_output=True, text=True,
                                   timeout=2 * PATIENCE, env={**os.environ, "INTEROP_BREAK": "4711"})
                self.assertEqual(p.returncode, 1, p.stderr)
                self.assertIn("message 4711 of seed", p.stderr)


def as_json(message):
    return json.loads(msgspec.json.encode(message))


class Random(random.Random):
    """Messages whose sizes and numbers lie on both sides of where msgpack
    changes its form."""

    def message(self):
        kind = self.randrange(4)
        if kind == 0:
            return peers.AllocRequest(
                self.some(40, self.text), self.integer(), self.some(20, self.integer), self.letters(40), self.integer(),
                self.text(), self.random() < 0.5, self.integer())
        if kind == 1:
            return peers.AllocResponse(self.some(40, self.index), self.some(20, self.index))
        if kind == 2:
            return peers.ProxyNotif(self.text())
        return peers.CancelNotif(self.text(), self.some(40, self.text))

    def some(self, most, one):
        return [one() for _ in range(self.randint(0, most))]

    def index(self):
        v = self.getrandbits(self.randint(1, 63))
        return v if self.randrange(4) else -v - 1

    def integer(self):
        return self.index() if self.randrange(4) == 0 else self.getrandbits(self.randint(1, 64))

    def letters(self, most):
        return "".join(self.choices("ab/-_09 \0\n\"\\éЖ漢𝄞", k=self.randint(0, most)))

    def text(self):
        return self.letters(40) if self.randrange(16) else self.letters(120)


if __name__ == "__main__":
    unittest.main()
