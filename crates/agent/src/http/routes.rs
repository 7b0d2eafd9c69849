//! The routes with the right that each needs (R24).
//!
//! Guarantees
//! - No route exists without a right: it is one of the table of routes, or is not served.
//! - A parameter that a route does not have is refused, because a misspelt one would be left out in
//!   silence.
//! - A caller whose right is unknown, or less than a route needs, is refused before anything else
//!   happens.
//! - A request that changes something is in the audit log, or nothing is changed; see
//!   [`super::audit`]. Its key makes it happen once; see [`super::idempotency`].

use super::{Refused, idempotency};
use crate::access::{Caller, Peer};
use crate::agent::Agent;
use axum::Router;
use axum::extract::{ConnectInfo, Request, State as AppState};
use axum::http::{Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use mainstay_api::routes::{self, Route};
use mainstay_types::{Access, Code, Problem};
use std::sync::Arc;

/// Routes that have a handler so far.
#[derive(Default)]
pub struct Routes {
    router: Router<Arc<Agent>>,
    pub table: Vec<&'static Route>,
}

impl Routes {
    /// Adds the handler of a route. One that the table of routes does not have is left out, because
    /// nothing says who may use it; a test sees that.
    pub fn on(mut self, method: Method, path: &str, handler: MethodRouter<Arc<Agent>>) -> Self {
        let Some(route) = routes::find(method.as_str(), path) else {
            tracing::error!(%method, path, "a route is in no table and is not served");
            return self;
        };
        self.table.push(route);
        let guarded = handler.route_layer(middleware::from_fn_with_state(route, guard));
        self.router = self.router.route(route.path, guarded);
        self
    }

    pub fn into_router(self) -> Router<Arc<Agent>> {
        self.router
    }
}

/// Finds out who asks, for [`guard`].
pub async fn identify(AppState(agent): AppState<Arc<Agent>>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|peer| peer.0);
    let asked = agent.clone();
    // A caller without a name or a right is refused by each route.
    if let Some(peer) = peer
        && let Ok(caller) = tokio::task::spawn_blocking(move || asked.callers.caller(&peer)).await
    {
        request.extensions_mut().insert(caller);
    }
    request.extensions_mut().insert(agent);
    next.run(request).await
}

/// Lets a request through if its caller may make it.
async fn guard(AppState(route): AppState<&'static Route>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(route);
    let caller = request.extensions().get::<Caller>().cloned();
    let Some(agent) = request.extensions().get::<Arc<Agent>>().cloned() else {
        let message = "a request has come by a way on which nobody looks who asks";
        let problem = Problem::new(Code::AgentInternal, message, "Report this with the agent's log.");
        return Refused::from(problem).into_response();
    };
    let allowed = allowed(caller, route, &agent.callers.groups.remedy());
    let allowed = allowed.and_then(|by| {
        known_parameters(route, request.uri().query())?;
        no_empty_condition(route, &request)?;
        Ok(by)
    });
    match allowed {
        Err(refusal) => {
            tracing::warn!(method = %route.method, path = route.path, why = refusal.message, "a request is refused");
            Refused::from(refusal).into_response()
        }
        Ok(by) if route.changes => idempotency::once(agent, by, request, next).await,
        Ok(_) => next.run(request).await,
    }
}

/// Refuses parameters that a route does not have. Proxies and scrapers may add some to others.
fn known_parameters(route: &Route, query: Option<&str>) -> Result<(), Problem> {
    if !route.is_of_cluster() {
        return Ok(());
    }
    let names = query.unwrap_or_default().split('&').map(|pair| pair.split('=').next().unwrap_or_default());
    let is_known = |name: &str| route.query.iter().any(|parameter| parameter.name == name);
    let Some(unknown) = names.into_iter().find(|name| !name.is_empty() && !is_known(name)) else {
        return Ok(());
    };
    let known: Vec<&str> = route.query.iter().map(|parameter| parameter.name).collect();
    let remedy = match known.as_slice() {
        [] => "This route has no parameters.".to_owned(),
        known => format!("It has these: {}.", known.join(", ")),
    };
    Err(Problem::new(Code::BadRequest, format!("{unknown}: the route has no such parameter"), remedy))
}

/// Refuses a condition on a change that would be made without regard to it.
fn no_empty_condition(route: &Route, request: &Request) -> Result<(), Problem> {
    if !route.changes || route.is_conditional || !request.headers().contains_key(header::IF_MATCH) {
        return Ok(());
    }
    let remedy = "Leave the header out, and look at the state before the change.";
    Err(Problem::new(Code::BadRequest, "If-Match: the route makes its change without regard to it", remedy))
}

/// The caller with its right.
fn allowed(caller: Option<Caller>, route: &Route, remedy: &str) -> Result<(Caller, Access), Problem> {
    let Some(caller) = caller else {
        let message = "the agent cannot find out who asks, so nothing is answered";
        return Err(Problem::new(Code::Forbidden, message, remedy));
    };
    // The name of a token says that it is one.
    let kind = if caller.from.is_some() { "" } else { "user " };
    let who = format!("the {kind}{}", caller.who);
    let message = match caller.access {
        Some(access) if access >= route.access => return Ok((caller, access)),
        Some(access) => format!(
            "{who} has the right `{access}`, and {} {} needs `{}`",
            route.method, route.path, route.access
        ),
        None => format!("{who} has no right to use Mainstay on this node"),
    };
    if caller.from.is_some() {
        let remedy =
            format!("Use a token with the right `{}`. `mainstay token list` shows them.", route.access);
        return Err(Problem::new(Code::Forbidden, message, remedy));
    }
    Err(Problem::new(Code::Forbidden, message, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(access: Option<Access>) -> Caller {
        Caller { who: "bob".into(), login: None, from: None, access }
    }

    #[test]
    fn a_route_is_open_to_its_right_and_greater_ones_alone() {
        for needed in Access::ALL {
            let route = Route { access: needed, ..*routes::find("GET", "/v1/status").unwrap() };
            assert!(allowed(None, &route, "").is_err());
            assert!(allowed(Some(caller(None)), &route, "").is_err());
            for has in Access::ALL {
                let result = allowed(Some(caller(Some(has))), &route, "");
                assert_eq!(result.is_ok(), has >= needed, "{has} for {needed}");
            }
        }
    }

    #[test]
    fn a_refusal_names_user_right_and_remedy() {
        let route = routes::find("PUT", "/v1/services").unwrap();
        let refusal = allowed(Some(caller(Some(Access::Read))), route, "Ask root.").unwrap_err();
        assert_eq!(refusal.message, "the user bob has the right `read`, and PUT /v1/services needs `admin`");
        assert_eq!((refusal.code, refusal.remedy.as_str()), (Code::Forbidden, "Ask root."));
        let who = "token ci".to_owned();
        let by_token = Caller { who, from: Some("10.0.0.9".into()), ..caller(Some(Access::Operate)) };
        let refusal = allowed(Some(by_token), route, "Ask root.").unwrap_err();
        assert_eq!(
            refusal.message,
            "the token ci has the right `operate`, and PUT /v1/services needs `admin`"
        );
        assert!(refusal.remedy.starts_with("Use a token with the right `admin`."), "{refusal}");
    }

    #[test]
    fn a_misspelt_parameter_is_refused_with_those_that_there_are() {
        let route = routes::find("GET", "/v1/events").unwrap();
        for good in [None, Some(""), Some("after=3"), Some("wait_ms=5&after=3"), Some("after")] {
            assert_eq!(known_parameters(route, good), Ok(()), "{good:?}");
        }
        let refusal = known_parameters(route, Some("after=1&wait=5")).unwrap_err();
        assert_eq!(refusal.message, "wait: the route has no such parameter");
        assert_eq!(refusal.remedy, "It has these: after, wait_ms, limit.");
        let metrics = routes::find("GET", "/metrics").unwrap();
        assert_eq!(known_parameters(metrics, Some("x=1")), Ok(()));
    }
}
