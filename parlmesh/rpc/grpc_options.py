"""Channel and server options, set once for both sides so that they agree."""

CLIENT_PING_SECONDS = 30
PING_ANSWER_SECONDS = 10
SERVER_LEAST_PING_SECONDS = 20
STREAM_WINDOW_BYTES = 1 << 20
STRANGERS_STREAM_WINDOW_BYTES = 1 << 16
MOST_STREAMS_PER_CONNECTION = 1024
MOST_METADATA_BYTES = 8 << 10
HANDSHAKE_SECONDS = 20
IDLE_CONNECTION_SECONDS = 15 * 60

Options = list[tuple[str, int]]


def server_options(max_message_bytes: int, *, answers_strangers: bool = False) -> Options:
    """Finds dead clients, and accepts the pings of `channel_options`."""
    return [
        # Two servers on one port would share the calls silently; the second must fail instead.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", CLIENT_PING_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", PING_ANSWER_SECONDS * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", SERVER_LEAST_PING_SECONDS * 1000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", SERVER_LEAST_PING_SECONDS * 1000),
        ("grpc.http2.max_pings_without_data", 0),
        # Bytes that one stream may have in flight. By default this grows with the link's speed, for every sender at
        # once: decision 0011 has the cost. gRPC reads that much before the event loop can refuse the call, so it is
        # small where strangers may call: a message that is asked for widens it for itself (decision 0020).
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", STRANGERS_STREAM_WINDOW_BYTES if answers_strangers else STREAM_WINDOW_BYTES),
        # Headers are kept until the call is refused. With the first limit alone, gRPC would refuse at random between
        # it and twice as much.
        ("grpc.max_metadata_size", MOST_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MOST_METADATA_BYTES),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # A client holds back further streams until one of its own has ended.
        ("grpc.max_concurrent_streams", MOST_STREAMS_PER_CONNECTION),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
        # For connections without a call; our clients reconnect when they have one.
        ("grpc.max_connection_idle_ms", IDLE_CONNECTION_SECONDS * 1000),
    ]


def channel_options(max_message_bytes: int, *, loopback: bool) -> Options:
    """Finds a dead server within 40 s and reconnects within about a second of its return."""
    options = [
        ("grpc.keepalive_time_ms", CLIENT_PING_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", PING_ANSWER_SECONDS * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # gRPC would repeat calls that were not sent, without a limit: while a connection was dying, one call kept its
        # thread for seconds and took gigabytes (decision 0064). Those who call decide about repetitions.
        ("grpc.enable_retries", 0),
        # Each channel has its own connection: a large download never delays another channel's heartbeats.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return [*options, ("grpc.enable_http_proxy", 0)] if loopback else options
