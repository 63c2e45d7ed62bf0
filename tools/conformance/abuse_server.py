#!/usr/bin/env python3
"""Badly behaved clients, many at a time, against a running `agoge serve`: slow readers, cut connections, requests that never end, too large,
malformed, pipelined; and well-formed ones among them, each of which must be answered or refused with 429 or 503. Python's own library only.

    make_tiny_folder /tmp/tiny      # and a chat_template.jinja in /tmp/tiny/model
    agoge serve --model /tmp/tiny/model --request-timeout 5 --reply-timeout 10 --slots 8 --queue 16 &
    abuse_server.py http://127.0.0.1:8000 --pid $! --seconds 600

Memory is that of the process at the end of the first fifth and at the end; what it grew by in between is printed, and more than
--may-grow MiB is a failure."""
import argparse, asyncio, json, random, time, urllib.parse

stats = {}
PATH = "/v1/chat/completions"


def count(what):
    stats[what] = stats.get(what, 0) + 1


def chat(stream=False, tokens=20, words=8, **more):
    return {"messages": [{"role": "user", "content": " ".join(random.choice(("light", "ship", "wind", "night")) for _ in range(words))}],
            "max_tokens": tokens, "stream": stream, "ignore_eos": True, **more}


def request(body, extra=""):
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    return f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{extra}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def connect(url):
    return await asyncio.open_connection(url.hostname, url.port)


async def read_answer(reader):
    """Status and body, or None where the server closed without an answer."""
    line = await reader.readline()
    if not line:
        return None
    status, length, chunked = int(line.split()[1]), 0, False
    while (header := (await reader.readline()).strip()):
        name, _, value = header.decode().partition(":")
        length = int(value) if name.lower() == "content-length" else length
        chunked = chunked or (name.lower() == "transfer-encoding" and "chunked" in value)
    if not chunked:
        return status, await reader.readexactly(length)
    body = b""
    while True:
        n = int(await reader.readline(), 16)
        body += await reader.readexactly(n)
        await reader.readline()
        if n == 0:
            return status, body


async def well_formed(url):
    reader, writer = await connect(url)
    stream = random.random() < 0.5
    body = chat(stream, random.choice((1, 5, 40)), random.choice((1, 8, 60)))
    if random.random() < 0.2:
        body["response_format"] = {"type": "json_object"}
    if random.random() < 0.2:
        body.update(logprobs=True, top_logprobs=5, temperature=1.0)
    writer.write(request(body))
    answer = await asyncio.wait_for(read_answer(reader), 120)
    writer.close()
    if answer is None:
        return "well-formed: NO ANSWER"
    status, text = answer
    if status == 200 and stream and not text.endswith(b"data: [DONE]\n\n"):
        return "well-formed: STREAM WITHOUT END"
    return f"well-formed: {status}"


async def cut(url):
    reader, writer = await connect(url)
    data = request(chat(random.random() < 0.5, 200, n=random.choice((1, 3))))
    writer.write(data[:random.randrange(1, len(data))] if random.random() < 0.5 else data)
    await writer.drain()
    await asyncio.sleep(random.random() * 0.3)
    writer.transport.abort() if random.random() < 0.5 else writer.close()
    return "cut"


async def slow_reader(url):
    reader, writer = await connect(url)
    writer.transport.pause_reading()
    writer.write(request(chat(True, 300, logprobs=True, top_logprobs=20)))
    await asyncio.sleep(random.random() * 3)
    writer.close()
    return "slow reader"


async def never_ends(url):
    reader, writer = await connect(url)
    for byte in request(chat())[:random.randrange(5, 60)]:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)
    try:
        got = await asyncio.wait_for(reader.read(100), 45) # over the server's --request-timeout, 30 s unless it says otherwise
        return "never ends: closed" if not got else "never ends: answered"
    finally:
        writer.close()


async def too_large(url):
    reader, writer = await connect(url)
    kind = random.randrange(3)
    if kind == 0:
        data = request(json.dumps(chat(words=2)).encode() + b" " * 9_000_000)
    elif kind == 1:
        data = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000 + b"\r\n\r\n"
    else:
        data = request(chat(words=40_000))
    try:
        writer.write(data)
        await asyncio.wait_for(writer.drain(), 10)
        answer = await asyncio.wait_for(read_answer(reader), 30)
        return f"too large: {answer[0] if answer else 'closed'}"
    except (ConnectionError, asyncio.IncompleteReadError):
        return "too large: closed"
    finally:
        writer.close()


async def malformed(url):
    reader, writer = await connect(url)
    data = random.choice((
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n\r\n\r\n", b"BREW /pot HTCPCP/1.0\r\n\r\n", b"POST " + PATH.encode() + b" HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        request(b"{\"messages\": [[[[[[" + b"[" * 5000), request(b"\xff\xfe\x00{"), request({"messages": "x"}), request({"messages": [{"role": "user", "content": None}]}),
        request(chat(temperature="hot")), request(chat(n=10 ** 30)), request(chat(logit_bias={"9" * 40: 1})),
        request(chat(response_format={"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}})),
        request(chat(stop=["x"] * 500)), bytes(random.randrange(256) for _ in range(300))))
    writer.write(data)
    try:
        answer = await asyncio.wait_for(read_answer(reader), 30)
        return f"malformed: {answer[0] // 100 if answer else 0}xx"
    except (ConnectionError, ValueError, IndexError, asyncio.IncompleteReadError):
        return "malformed: closed"
    except asyncio.TimeoutError:
        return "malformed: waited"
    finally:
        writer.close()


async def pipelined(url):
    reader, writer = await connect(url)
    n = random.randrange(2, 6)
    writer.write(b"".join(request(chat(tokens=2)) if i % 2 else b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" for i in range(n)))
    for _ in range(n):
        answer = await asyncio.wait_for(read_answer(reader), 120)
        if answer is None or answer[0] not in (200, 429, 503):
            return f"pipelined: BAD {answer}"
    writer.close()
    return "pipelined: all answered"


async def client(url, until):
    kinds = [well_formed] * 6 + [cut, cut, slow_reader, never_ends, too_large, malformed, malformed, pipelined]
    while time.time() < until:
        kind = random.choice(kinds)
        try:
            count(await kind(url))
        except (ConnectionError, asyncio.IncompleteReadError, BrokenPipeError) as e:
            count(f"{kind.__name__}: {type(e).__name__}")
        except asyncio.TimeoutError:
            count(f"{kind.__name__}: TIMED OUT")


def rss(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmRSS"))


async def main():
    p = argparse.ArgumentParser()
    p.add_argument("url")
    p.add_argument("--pid", type=int, required=True)
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--may-grow", type=float, default=16)
    args = p.parse_args()
    url = urllib.parse.urlparse(args.url)
    start = time.time()
    work = [asyncio.create_task(client(url, start + args.seconds)) for _ in range(args.clients)]
    await asyncio.sleep(args.seconds / 5)
    early = rss(args.pid)
    await asyncio.gather(*work)
    await asyncio.sleep(1)
    late = rss(args.pid)
    for what in sorted(stats):
        print(f"{stats[what]:8} {what}")
    print(f"memory {early:.1f} MiB after a fifth of the time, {late:.1f} MiB at the end")
    reader, writer = await connect(url)
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    alive = await asyncio.wait_for(read_answer(reader), 10)
    bad = [w for w in stats if w.startswith("well-formed") and w not in ("well-formed: 200", "well-formed: 429", "well-formed: 503") or "BAD" in w or "TIMED" in w]
    fine = not bad and late - early <= args.may_grow and alive and alive[0] == 200
    print("fine" if fine else f"NOT FINE: {bad}")
    raise SystemExit(not fine)


asyncio.run(main())
