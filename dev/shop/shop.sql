-- The demo shop: :n customers, the same every time. Among 50,000 are about
-- 300 without an address, 200 with a malformed one, 250 that repeat another
-- else's, and 500 that have opted out.
drop table if exists orders, customers;

create table customers (
    id            bigint primary key,
    email         text,
    name          text,
    city          text not null,
    country       text not null,
    locale        text not null,
    time_zone     text not null,
    points        int not null,
    opted_out     boolean not null default false,
    last_order_at timestamptz,
    joined_at     timestamptz not null
);

insert into customers (id, email, name, city, country, locale, time_zone, points, opted_out, last_order_at, joined_at)
with people as (
    select i,
           (array['Ada', 'Ben', 'Chloé', 'Dawit', 'Elif', 'Filip', 'Gülsüm', 'Hana', 'Ivo', 'João', 'Katrín', 'Léa', 'Mateo', 'Nora', 'Ola', 'Søren',
                  'Priya', 'Quentin', 'Renée', 'Siobhán', 'Tomás', 'Uma', 'Viktor', 'Wanda', 'Ximena', 'Yuki', 'Zoë'])[1 + i * 7 % 27] as first,
           (array['Adams', 'Bäcker', 'Costa', 'Duarte', 'Eriksson', 'Fischer', 'García', 'Hughes', 'Ito', 'Jansen', 'Kowalska', 'López', 'Müller', 'Novák',
                  'O''Brien', 'Petrov', 'Quinn', 'Rossi', 'Schmidt & Sons', 'Tanaka', 'Ünal', 'Vega', 'Weber'])[1 + i * 11 % 23] as last,
           places.*
    from generate_series(1, :n) i
    join (values
        (0, 'Berlin', 'DE', 'de-DE', 'Europe/Berlin'), (1, 'London', 'GB', 'en-GB', 'Europe/London'), (2, 'Paris', 'FR', 'fr-FR', 'Europe/Paris'),
        (3, 'Madrid', 'ES', 'es-ES', 'Europe/Madrid'), (4, 'New York', 'US', 'en-US', 'America/New_York'), (5, 'São Paulo', 'BR', 'pt-BR', 'America/Sao_Paulo'),
        (6, 'İstanbul', 'TR', 'tr-TR', 'Europe/Istanbul'), (7, 'Tōkyō', 'JP', 'ja-JP', 'Asia/Tokyo'), (8, 'Mumbai', 'IN', 'en-IN', 'Asia/Kolkata'),
        (9, 'Reykjavík', 'IS', 'is-IS', 'Atlantic/Reykjavik'), (10, 'Sydney', 'AU', 'en-AU', 'Australia/Sydney'), (11, 'Warszawa', 'PL', 'pl-PL', 'Europe/Warsaw')
    ) places (place, city, country, locale, time_zone) on place = i * 5 % 12
), addresses as (
    select *, regexp_replace(translate(lower(first || '.' || last), 'áäãçéëíóöøúü', 'aaaceeiooouu'), '[^a-z.]', '', 'g') || '.' || i || '@example.com' as address
    from people
)
select i,
       case
           when i % 167 = 11 then case when i % 2 = 0 then null else '' end
           when i % 250 = 7 then (array[replace(address, '@', ' at '), replace(address, '@', '@@'), 'not known', split_part(address, '@', 1) || '@', 'two words@example.com'])[1 + i / 250 % 5]
           when i % 200 = 13 then case when i % 400 = 13 then upper(before) else before end
           else address
       end,
       case when i % 97 = 5 then null else first || ' ' || last end,
       city, country, locale, time_zone, i * 37 % 1000,
       i % 100 = 42,
       case when i % 9 > 0 then timestamptz '2026-10-31 18:00+00' - i * 7919 % 700 * interval '1 day' - i * 31 % 1440 * interval '1 minute' end,
       timestamptz '2021-01-01 00:00+00' + i * 6007 % 1000 * interval '1 day'
from (select *, lag(address) over (order by i) as before from addresses) a;

create table orders (
    id          bigint primary key,
    customer_id bigint not null references customers (id),
    total       numeric(10, 2) not null,
    placed_at   timestamptz not null
);

insert into orders (id, customer_id, total, placed_at)
select row_number() over (order by id, o), id, 5 + (id * 17 + o * 131) % 20000 / 100.0, last_order_at - o * 40 * interval '1 day'
from customers, generate_series(0, (id % 3)::int) o
where last_order_at is not null;

create index orders_customer on orders (customer_id);
analyze customers;
analyze orders;
